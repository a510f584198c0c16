"""Idleness in words: signals with their values, how long, and what is said before and after a release.

``data`` is what rental/idle_services.py keeps with a warning or an end: moments in RFC 3339, seconds, signals.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.urls import reverse
from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.mails import Mail
from rental.idle import CHANGES, EVENTS, Reading, Signal
from rental.keep_links import KeepLink

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.utils.functional import Promise

    from rental.models import Lease

NAMES: Final[Mapping[str, str | Promise]] = {
    Signal.SSH_INPUT: gettext_lazy("SSH input"),
    Signal.APP_REQUEST: gettext_lazy("App request"),
    Signal.JOB: gettext_lazy("Job"),
    Signal.GPU: gettext_lazy("GPU load"),
    Signal.MIG_PROCESSES: gettext_lazy("GPU processes"),
    Signal.MIG_MEMORY: gettext_lazy("GPU memory"),
    Signal.CPU: gettext_lazy("CPU load"),
    Signal.NETWORK: gettext_lazy("Network"),
}
STATES: Final[Mapping[str, str | Promise]] = {
    Reading.ACTIVE: gettext_lazy("in use"),
    Reading.IDLE: gettext_lazy("idle"),
    Reading.UNKNOWN: gettext_lazy("could not be read"),
}
PERCENT: Final = frozenset({Signal.GPU, Signal.CPU})
K: Final = 1000
MIB: Final = 1 << 20


@dataclass(frozen=True)
class Line:
    """A signal as a row of a table; words but for ``state`` and ``at``."""

    name: str
    value: str
    counts: str
    state: str
    state_words: str
    at: datetime | None


def span(seconds: float) -> str:
    """How long, in its largest whole unit: ``2 h``, ``30 min``, ``40 s``."""
    whole = max(0, int(seconds))
    hours, minutes = divmod(whole // 60, 60)
    if hours and not minutes:
        return _("%(n)s h") % {"n": hours}
    if hours:
        return _("%(h)s h %(m)s min") % {"h": hours, "m": f"{minutes:02d}"}
    if minutes:
        return _("%(n)s min") % {"n": minutes}
    return _("%(n)s s") % {"n": whole}


def clock(moment: str | datetime) -> str:
    """``14:30 UTC``, with the date when that is another day's."""
    at = (datetime.fromisoformat(moment) if isinstance(moment, str) else moment).astimezone(UTC)
    return at.strftime("%H:%M UTC" if at.date() == datetime.now(UTC).date() else "%Y-%m-%d %H:%M UTC")


def lines(signals: list[dict[str, Any]]) -> list[Line]:
    """Rows for signals as kept: ``{"name", "value", "limit", "state", "last_active_at"}``."""
    return [
        Line(
            name=str(NAMES.get(said["name"], said["name"])),
            value=_value(said["name"], said["value"]),
            counts=counts_words(said["name"], said["limit"]),
            state=said["state"],
            state_words=str(STATES.get(said["state"], said["state"])),
            at=_moment(said["last_active_at"]),
        )
        for said in signals
    ]


def _moment(said: str | datetime | None) -> datetime | None:
    return datetime.fromisoformat(said) if isinstance(said, str) else said


def _value(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if name in EVENTS:
        return _("yes") if value else _("none")
    return _amount(name, value)


def counts_words(name: str, limit: Any) -> str:
    """From where on a signal counts as use: ``from 5 %``."""
    if name in EVENTS or limit is None:
        return _("any")
    if name in CHANGES:
        return _("a change of %(amount)s") % {"amount": _amount(name, limit)}
    return _("from %(amount)s") % {"amount": _amount(name, limit)}


def _amount(name: str, value: float) -> str:
    if name in PERCENT:
        return f"{_short(value)} %"
    if name == Signal.NETWORK:
        return _rate(value)
    if name == Signal.MIG_MEMORY:
        return f"{_short(value / MIB)} MiB"
    return _short(value)


def _rate(value: float) -> str:
    for unit, size in (("MB/s", K * K), ("kB/s", K)):
        if value >= size:
            return f"{_short(value / size)} {unit}"
    return f"{_short(value)} B/s"


def _short(value: float) -> str:
    rounded = round(value, 1)
    return str(number_format(rounded, decimal_pos=0 if rounded == int(rounded) else 1, force_grouping=True))


def used_last(data: Mapping[str, Any]) -> str:
    """What idleness was counted from: ``SSH input at 13:58 UTC``."""
    at = clock(data["idle_since"])
    if data["since"] == "kept":
        return _("kept by the renter at %(at)s") % {"at": at}
    if data["since"] == "ready":
        return _("nothing since it became ready; counted from %(at)s") % {"at": at}
    if not data["signal"]:
        return _("not known before %(at)s, when the node was heard again") % {"at": at}
    name = str(NAMES.get(data["signal"], data["signal"]))
    if not data["known"]:
        return _("%(signal)s, which could not be read until %(at)s") % {"signal": name, "at": at}
    return _("%(signal)s at %(at)s") % {"signal": name, "at": at}


def used_by(last: str, signal: str, *, known: bool) -> str:
    """What counted as use last, without the time."""
    if last == "kept":
        return _("kept by the renter")
    if last == "ready":
        return _("nothing yet")
    if not signal:
        return _("not known: nothing was measured")
    name = str(NAMES.get(signal, signal))
    return name if known else _("%(signal)s could not be read") % {"signal": name}


def why(data: Mapping[str, Any]) -> str:
    """The sentence below a line of history."""
    return _("Idle for %(time)s. Last use: %(last)s.") % {"time": span(data["idle_s"]), "last": used_last(data)}


# --- notices ----------------------------------------------------------------------------------------------------------


def warning_line(lease: Lease, data: dict[str, Any]) -> str:
    """The line on open terminals."""
    return _("Idle for %(time)s: this lease is released at %(at)s unless it is used. Typing here counts.") % {
        "time": span(data["idle_s"]),
        "at": clock(data["release_at"]),
    }


def warning_mail(lease: Lease, data: dict[str, Any]) -> Mail:
    """Before a release, with the link that keeps the lease."""
    name, at = lease.name or lease.pk, clock(data["release_at"])
    link = KeepLink(lease.pk, datetime.fromisoformat(data["idle_since"]), datetime.fromisoformat(data["release_at"]))
    return Mail(
        _("%(name)s is idle and will be released at %(at)s") % {"name": name, "at": at},
        _(
            "Nothing has used this lease for %(time)s. It is released at %(at)s unless it is used again, and everything"
            " in it is deleted. Last use: %(last)s."
        )
        % {"time": span(data["idle_s"]), "at": at, "last": used_last(data)},
        url=link.url,
        label=_("Keep it running"),
        after=_(
            "The link opens a page with a button; it works once, until then, and needs no sign-in: do not pass it on."
            " The lease: %(url)s"
        )
        % {"url": _page(lease, "lease")},
    )


def released_line(lease: Lease, data: dict[str, Any]) -> str:
    """The last line on open terminals."""
    return _("Idle for %(time)s: this lease is released now.") % {"time": span(data["window_s"])}


def released_mail(lease: Lease, data: dict[str, Any]) -> Mail:
    """After a release: why, signal by signal."""
    said = "\n".join(
        _("%(signal)s: %(value)s (counts: %(counts)s)")
        % {"signal": line.name, "value": line.value, "counts": line.counts}
        for line in lines(data["signals"])
    )
    return Mail(
        _("%(name)s was released: it was idle") % {"name": lease.name or lease.pk},
        _("Nothing used this lease for %(time)s, so it was released. Nothing more is charged. Last use: %(last)s.")
        % {"time": span(data["window_s"]), "last": used_last(data)},
        url=_page(lease, "lease-receipt"),
        label=_("Receipt"),
        after=_("What was measured last:") + "\n" + said,
    )


def _page(lease: Lease, name: str) -> str:
    return f"{settings.PORTAL_URL}{reverse(name, args=[lease.pk])}"
