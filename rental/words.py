"""What happened and what stands in the way, in the reader's language. Codes are of lifecycle, reports, placement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, ngettext_lazy

from portal.templatetags.lessor import duration, money
from rental import idle_words, placement
from rental.states import BEFORE_READY, EndReason, Gap, State

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from django.utils.functional import Promise

    from rental.models import Lease, LeaseEvent
    from rental.placement import Reason


@dataclass(frozen=True)
class Entry:
    """A line of a lease's history, as ``{% timeline %}`` takes it."""

    state: str
    title: str
    why: str = ""
    at: datetime | None = None
    todo: bool = False


TITLES: dict[str, str | Promise] = {
    "requested": gettext_lazy("Requested"),
    "assigned": gettext_lazy("Assigned"),
    "pulling": gettext_lazy("Pulling the image"),
    "starting": gettext_lazy("Starting"),
    "started": gettext_lazy("Container started"),
    "ready": gettext_lazy("Running"),
    "exited": gettext_lazy("The main process ended"),
    "deadline": gettext_lazy("The node reached the end time"),
    "stopped": gettext_lazy("Container stopped"),
    "cleaned": gettext_lazy("Cleaned and released"),
    "cleaning_failed": gettext_lazy("Ended, its GPUs are examined"),
    "ended": gettext_lazy("Ended"),
    "kept": gettext_lazy("Kept by the renter"),
    "idle_warning": gettext_lazy("Idle: warned of its release"),
    "idle_released": gettext_lazy("Told why it was released"),
    "idle_shadow": gettext_lazy("Idle: noted, not released"),
    "node_heard": gettext_lazy("Contact with the node is back"),
    "gpu_failed": gettext_lazy("Told that a GPU failed"),
    "extended": gettext_lazy("Extended"),
    "limited": gettext_lazy("Limits changed"),
    "run_out_deadline": gettext_lazy("Warned: its time is nearly over"),
    "run_out_cap": gettext_lazy("Warned: its spend cap is nearly used up"),
    "run_out_balance": gettext_lazy("Warned: the balance is nearly used up"),
    "run_out_month": gettext_lazy("Warned: the spend cap of the month is nearly reached"),
    "ssh_down": gettext_lazy("SSH does not answer"),
    "ssh_up": gettext_lazy("SSH works again"),
}
IDLE = frozenset({"idle", "idle_warning", "idle_shadow"})  # their data says since when and after what
WHYS: dict[str, str | Promise] = {
    "ready": gettext_lazy(
        "A login over SSH worked and the container saw exactly the GPUs of this lease. Charged from here."
    ),
    "node_heard": gettext_lazy("The time without contact is not charged."),
    "ssh_down": gettext_lazy("Not charged until it works again."),
    "ssh_up": gettext_lazy("Charged again from here."),
}
GAPS: dict[str, str | Promise] = {
    Gap.STARTING: gettext_lazy("Order, image and start: free until it is ready"),
    Gap.SSH_DOWN: gettext_lazy("SSH did not answer: not charged"),
    Gap.PAUSED_VRAM: gettext_lazy("Paused: not charged"),
    Gap.GPU_LOST: gettext_lazy("A GPU failed: not charged"),
    Gap.NODE_SILENT: gettext_lazy("No contact with the node: not charged"),
    Gap.OPERATOR_MOVE: gettext_lazy("Moved by the operator: not charged"),
    Gap.STOPPING: gettext_lazy("Stopping and cleaning: our time"),
}
# One GPU, several GPUs.
REASONS: dict[str, Any] = {
    placement.BUSY: ngettext_lazy("%(count)d is leased", "%(count)d are leased", "count"),
    placement.DRAINING: ngettext_lazy(
        "%(count)d is on a node that takes no new leases", "%(count)d are on nodes that take no new leases", "count"
    ),
    placement.SILENT: ngettext_lazy(
        "%(count)d is on a node that does not answer", "%(count)d are on nodes that do not answer", "count"
    ),
    placement.NOT_READY: ngettext_lazy(
        "%(count)d is on a node that is not ready yet", "%(count)d are on nodes that are not ready yet", "count"
    ),
    placement.UNHEALTHY: ngettext_lazy("%(count)d is out of service", "%(count)d are out of service", "count"),
    "group_too_small": ngettext_lazy(
        "the largest node has %(count)d of them", "the largest node has %(count)d of them", "count"
    ),
    "free_group_too_small": ngettext_lazy(
        "the largest free group is %(count)d", "the largest free group is %(count)d", "count"
    ),
}


def reasons(found: Iterable[Reason | dict[str, Any]]) -> list[str]:
    """Why nothing is free, one sentence each; a reason from a refusal is a dict with ``code``, ``count``, ``text``."""
    said = []
    for reason in found:
        facts = (
            reason if isinstance(reason, dict) else {"code": reason.code, "count": reason.count, "text": reason.text}
        )
        said.append(_reason(facts))
    return said


def _reason(facts: dict[str, Any]) -> str:
    if facts["code"] == "no_price":
        return _("no price is set for this GPU yet")
    if facts["code"] == "none_installed":
        return _("there is no such GPU in the fleet")
    words = REASONS.get(facts["code"])
    return str(words % {"count": facts["count"]}) if words else str(facts.get("text") or facts["code"])


def gap(reason: str) -> str:
    """Why a stretch was not charged."""
    return str(GAPS.get(reason, reason))


def end_reason(lease: Lease) -> str:
    """Why a lease ended, as a sentence."""
    words = str(EndReason(lease.end_reason).label) if lease.end_reason else ""
    return words[:1].upper() + words[1:]


def end_detail(lease: Lease) -> str:
    """What is told beside the reason. What a node said stays as it said it; our own sentences are the reader's."""
    if lease.end_reason == EndReason.IDLE and lease.inactive_timeout_s:
        return _("Nothing used it for %(time)s.") % {"time": idle_words.span(lease.inactive_timeout_s)}
    if lease.end_reason == EndReason.TENANT_SUSPENDED:
        return _("This account is suspended; ask the operator.")
    return lease.end_detail


def history(lease: Lease, events: Iterable[LeaseEvent]) -> list[Entry]:
    """What happened, newest first; before a lease is ready in order of time, with the steps to come."""
    entries = [
        Entry(state=event.to_state, title=_title(lease, event), why=_why(lease, event), at=event.at) for event in events
    ]
    if lease.state in BEFORE_READY:
        return [*entries, *_to_come(lease)]
    return entries[::-1]


def _title(lease: Lease, event: LeaseEvent) -> str:
    if event.code == "assigned" and lease.node:
        return _("Assigned to %(node)s") % {"node": lease.node.name}
    if event.code in TITLES:
        return str(TITLES[event.code])
    if event.code in EndReason.values:
        words = str(EndReason(event.code).label)
        return words[:1].upper() + words[1:]
    return event.code.replace("_", " ").capitalize()


def _why(lease: Lease, event: LeaseEvent) -> str:
    if event.code == "requested":
        return _("by %(who)s") % {"who": event.actor_label} if event.actor_label else ""
    if event.code == "assigned":
        return ngettext(
            "%(count)d GPU is yours; nobody else can take it.",
            "%(count)d GPUs are yours; nobody else can take them.",
            lease.gpu_count,
        ) % {"count": lease.gpu_count}
    if event.code in {"extended", "limited"}:
        return _limits(lease, event.data)
    if event.code in WHYS:
        return str(WHYS[event.code])
    return idle_words.why(event.data) if event.code in IDLE and event.data else event.detail


def _limits(lease: Lease, data: dict[str, Any]) -> str:
    """What a change of limits changed."""
    (old_s, new_s), (old_cap, new_cap) = data["max_duration_s"], data["spend_cap_micros"]
    said = []
    if new_s != old_s:
        said.append(_("It ends after %(new)s, before %(old)s.") % {"new": duration(new_s), "old": duration(old_s)})
    if new_cap is None and old_cap is not None:
        said.append(_("It has no spend cap any more."))
    elif new_cap != old_cap:
        said.append(_("Its spend cap is %(cap)s.") % {"cap": money(new_cap, lease.currency)})
    return " ".join(said)


def _to_come(lease: Lease) -> list[Entry]:
    launch = Entry(
        state=State.REQUESTED, title=_("Start the container"), why=_("Network, workspace and your GPUs"), todo=True
    )
    check = Entry(
        state=State.REQUESTED, title=_("Check it"), why=_("Log in over SSH, see exactly the GPUs leased"), todo=True
    )
    ready = Entry(state=State.RUNNING, title=_("Ready: charging begins"), todo=True)
    return [check, ready] if lease.started_at else [launch, check, ready]
