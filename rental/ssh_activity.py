"""Who came into a lease over SSH: what its page shows, and what a login says about the key it was made with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from django.db.models import Q
from django.utils.translation import gettext as _

from nodes.models import SshEvent
from portal.models import SshKey
from rental import live
from rental.models import Lease

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from nodes.models import Node

SHOWN: Final = 10
PORTAL: Final = "portal"  # the first word of an event's detail where the portal itself came in
# A session's beginning says nothing that its login and its end do not.
KINDS: Final = (
    SshEvent.Kind.LOGIN, SshEvent.Kind.LOGIN_REFUSED, SshEvent.Kind.SESSION_END, SshEvent.Kind.FORWARD,
)  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """A line of the page. ``refused`` asks for attention; ``traffic`` is (bytes in, bytes out) of a session's end."""

    at: datetime
    what: str
    who: str
    key: str
    peer: str
    refused: bool
    traffic: tuple[int, int] | None


def recent(lease: Lease) -> list[Seen]:
    """The latest of it, newest first. Two queries, none before the lease has a node.

    Only what its own node says: another one could name any lease.
    """
    if lease.node_id is None:
        return []
    events = list(SshEvent.objects.filter(node=lease.node_id, lease_ref=lease.pk, kind__in=KINDS)[:SHOWN])
    names = _key_names(lease.tenant_id, {event.key for event in events}) if events else {}
    return [_seen(event, names) for event in events]


def note(*, node: Node, events: Iterable[SshEvent]) -> None:
    """New events of a node: keys learn when they were last used, pages of the leases are told to look again."""
    told = list(events)
    leases = Lease.objects.filter(node=node).in_bulk({event.lease_ref for event in told})
    last: dict[tuple[str, str], datetime] = {}
    for event in told:
        if event.kind == SshEvent.Kind.LOGIN and event.lease_ref in leases:
            use = (leases[event.lease_ref].tenant_id, event.key)
            last[use] = max(event.at, last.get(use, event.at))
    for (tenant_id, fingerprint), at in last.items():
        keys = SshKey.objects.filter(fingerprint=fingerprint, user__memberships__tenant=tenant_id)
        keys.filter(Q(last_used_at__isnull=True) | Q(last_used_at__lt=at)).update(last_used_at=at)
    for lease in leases.values():
        live.publish(lease)


def _key_names(tenant_id: str, fingerprints: set[str]) -> dict[str, str]:
    """``{fingerprint: "maya@example.com, laptop"}`` of the tenant's people."""
    keys = SshKey.objects.filter(fingerprint__in=fingerprints, user__memberships__tenant=tenant_id)
    found = keys.select_related("user").order_by("pk")
    return {key.fingerprint: f"{key.user.email}, {key.name}" if key.name else key.user.email for key in found}


def _seen(event: SshEvent, names: dict[str, str]) -> Seen:
    by_portal = event.detail.split(" ")[0] == PORTAL
    return Seen(
        at=event.at,
        what=_what(event),
        who=_("the portal") if by_portal else names.get(event.key, ""),
        key="" if by_portal else event.key,
        peer=event.peer,
        refused=event.kind == SshEvent.Kind.LOGIN_REFUSED or event.detail.endswith(" refused"),
        traffic=(event.bytes_in, event.bytes_out) if event.kind == SshEvent.Kind.SESSION_END else None,
    )


def _what(event: SshEvent) -> str:
    detail = event.detail.removeprefix(PORTAL).strip()
    if event.kind == SshEvent.Kind.LOGIN:
        return _("Logged in")
    if event.kind == SshEvent.Kind.LOGIN_REFUSED:
        return _("Login refused")
    if event.kind == SshEvent.Kind.FORWARD:
        place = detail.removesuffix(" refused")
        refused = detail != place
        return (_("Forward to %(place)s refused") if refused else _("Forward to %(place)s")) % {"place": place}
    words = {"shell": _("Shell ended"), "command": _("Command ended"), "sftp": _("File transfer ended")}
    return words.get(detail, _("Session ended"))
