"""The components pages are built from. Tags take integers and format them.

Integers are micros, ticks or seconds. A tag that is only markup renders a file in `templates/components/`;
arithmetic and words live here. `docs/pages.md` lists every tag, `templates/portal/states.html` shows each in use.
The library is a template builtin (settings), so no `{% load %}` is needed.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from django import template
from django.conf import settings
from django.forms import BoundField, CheckboxInput
from django.http import HttpRequest
from django.template import Context
from django.urls import reverse
from django.utils import timezone
from django.utils.formats import date_format, get_format
from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language, gettext, gettext_lazy, pgettext

from portal import drawings, formatting, icons

register = template.Library()

_STATE_WORDS = {
    "requested": gettext_lazy("Requested"),
    "assigned": gettext_lazy("Assigned"),
    "starting": gettext_lazy("Starting"),
    "running": gettext_lazy("Running"),
    "stopping": gettext_lazy("Stopping"),
    "ended": gettext_lazy("Ended"),
    "interrupted": gettext_lazy("Interrupted"),
}
_METER_WARN, _METER_BAD = 80, 95
_AVAIL_BARS, _AVAIL_WIDTH, _AVAIL_GAP = 8, 52.0, 1.5


def _style() -> formatting.Style:
    return _style_for(get_language() or "en")


@lru_cache(maxsize=16)
def _style_for(language: str) -> formatting.Style:
    """Reads the active language; `language` is only the cache key."""
    symbols = dict(formatting.SYMBOLS)
    if language.startswith("zh"):
        symbols |= {"CNY": "¥", "JPY": "JP¥"}
    return formatting.Style(
        decimal=str(get_format("DECIMAL_SEPARATOR")),
        group=str(get_format("THOUSAND_SEPARATOR")) or ",",  # empty for Chinese in Django; prices there do group
        hours=gettext("{h} h {m} min {s} s"),
        minutes=gettext("{m} min {s} s"),
        seconds=gettext("{s} s"),
        seconds_ago=gettext("{n} s ago"),
        minutes_ago=gettext("{n} min ago"),
        hours_ago=gettext("{n} h ago"),
        day_ago=gettext("1 day ago"),
        days_ago=gettext("{n} days ago"),
        symbols=symbols,
    )


def _now(context: Context) -> int:
    """The page's own moment, so that everything on it agrees."""
    return int(context.get("now_unix") or timezone.now().timestamp())


def _currency(context: Context, given: str) -> str:
    return given or str(context.get("currency") or settings.CURRENCY)


# ---------------------------------------------------------------- money


@register.filter
def money(micros: int, currency: str) -> str:
    """`{{ price_micros|money:currency }}`: $182.40, for balances, invoices and headers."""
    return formatting.money(int(micros), currency, _style())


@register.filter
def ticks_money(ticks: int, currency: str) -> str:
    """`{{ balance_ticks|ticks_money:currency }}`: $182.40."""
    return formatting.ticks_money(int(ticks), currency, _style())


@register.filter
def have_money(ticks: int, currency: str) -> str:
    """A balance: $182.40, rounded down."""
    return formatting.have_money(int(ticks), currency, _style())


@register.filter
def need_money(ticks: int, currency: str) -> str:
    """A hold, or the most that can be charged: $4.98, rounded up."""
    return formatting.need_money(int(ticks), currency, _style())


@register.filter
def ticks_cost(ticks: int, currency: str) -> str:
    """What a lease has cost: $18.4509."""
    return formatting.ticks_money(int(ticks), currency, _style(), extra=2)


@register.filter
def ticks_line(ticks: int, currency: str) -> str:
    """A line of a receipt: $18.450900."""
    return formatting.ticks_money(int(ticks), currency, _style(), extra=4)


@register.filter
def per_hour(micros_per_hour: int, currency: str) -> str:
    """A price without its unit: $2.49. Never rounded. Write the unit in the sentence: `{% translate %}{{ p }} / h`."""
    return formatting.price_per_hour(int(micros_per_hour), currency, _style())


@register.filter
def per_second(micros_per_hour: int, currency: str) -> str:
    """The same price for one second, from micros per hour: $0.000692."""
    return formatting.price_per_second(int(micros_per_hour), currency, _style())


@register.filter
def integer(value: int) -> str:
    """13338 as 13,338."""
    return formatting.integer(int(value), _style())


@register.simple_tag(takes_context=True)
def price(context: Context, micros_per_hour: int, currency: str = "", *, best: bool = False) -> SafeString:
    """`{% price offer.price_micros offer.currency %}`: the hour in bold, the second below."""
    code = _currency(context, currency)
    return format_html(
        '<span class="price{}"><b>{}<small> {}</small></b><span>{} {}</span></span>',
        " best" if best else "",
        per_hour(micros_per_hour, code),
        pgettext("per hour, after a price", "/ h"),
        per_second(micros_per_hour, code),
        pgettext("per second, after a price", "/ s"),
    )


@register.simple_tag(takes_context=True)
def ticker(
    context: Context, rate_micros: int, from_unix: int | None, base_ticks: int = 0, currency: str = ""
) -> SafeString:
    """The running cost of a lease, counted on in the browser.

    `rate_micros` per hour for the whole lease, `from_unix` the start of the open segment (None: nothing is counting),
    `base_ticks` the closed segments. The last two decimals are faint.
    """
    code = _currency(context, currency)
    now = _now(context)
    ticks = base_ticks + (max(0, now - from_unix) * rate_micros if from_unix is not None else 0)
    text = ticks_cost(ticks, code)
    counting = (
        ""
        if from_unix is None
        else format_html(
            ' data-ticker="{}" data-from="{}" data-base="{}" data-digits="{}" role="timer" aria-live="off"',
            rate_micros,
            from_unix,
            base_ticks,
            formatting.minor_digits(code) + 2,
        )
    )
    prefix = formatting.with_currency("", code, _style())
    return format_html(
        '<div class="ticker"{}><span class="visually-hidden">{} </span>{}<span data-whole>{}</span>'
        '<span class="frac" data-frac>{}</span></div>',
        counting,
        gettext("Cost so far:"),
        prefix,
        text.removeprefix(prefix)[:-2],
        text[-2:],
    )


# ---------------------------------------------------------------- time


@register.filter
def duration(seconds: int) -> str:
    """3 h 42 min 18 s."""
    return formatting.duration(int(seconds), _style())


@register.filter
def ago(moment: datetime) -> str:
    """The age of a moment: 21 min ago. Not beside money, where `duration` or `{% age %}` counts the seconds."""
    return formatting.ago(int((timezone.now() - moment).total_seconds()), _style())


@register.simple_tag(takes_context=True)
def countdown(context: Context, until_unix: int) -> SafeString:
    """Time left until a Unix second, counted down in the browser."""
    left = until_unix - _now(context)
    return format_html('<span class="countdown" data-until="{}">{}</span>', until_unix, duration(left))


@register.simple_tag(takes_context=True)
def age(context: Context, since_unix: int) -> SafeString:
    """Time since a Unix second, counted up in the browser."""
    passed = _now(context) - since_unix
    return format_html('<span class="num" data-since="{}">{}</span>', since_unix, duration(passed))


@register.filter
def localtime_tz(moment: datetime) -> SafeString:
    """A moment with its zone, the date only when it is not today. The browser rewrites it into the reader's zone."""
    local = timezone.localtime(moment)
    text = local.strftime("%H:%M:%S")
    if local.date() != timezone.localdate():
        text = f"{date_format(local, 'DATE_FORMAT')} {text}"
    return format_html('<time datetime="{}" data-local>{} {}</time>', _utc(moment), text, local.tzname())


@register.filter
def utc_time(moment: datetime) -> SafeString:
    """A moment in UTC to the second, for receipts; the browser leaves it alone."""
    text = moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return format_html('<time class="num" datetime="{}">{}</time>', _utc(moment), text)


def _utc(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ---------------------------------------------------------------- marks and drawings


@register.simple_tag
def icon(name: str) -> SafeString:
    """A Lucide icon, decorative: put words beside it or an `aria-label` on the button."""
    return icons.icon_svg(name)


@register.simple_tag
def glyph(state: str) -> SafeString:
    """The shape of a lease state, without word or colour."""
    return mark_safe(f'<svg viewBox="0 0 12 12" aria-hidden="true">{drawings.GLYPHS[state]}</svg>')  # noqa: S308 - our own table


@register.simple_tag(name="state")
def state_badge(name: str) -> SafeString:
    """The badge of a lease state: glyph, word and colour."""
    return format_html('<span class="state" data-state="{}">{}{}</span>', name, glyph(name), _STATE_WORDS[name])


@register.simple_tag
def live() -> SafeString:
    """The marker of a page with an open stream; it says so itself when nothing came for 40 s (app.js)."""
    return format_html(
        '<span class="live" data-live="ok" data-fresh="{0}" data-stale="{1}">{0}</span>',
        pgettext("a page that updates by itself", "live"),
        gettext("last update {age} ago"),
    )


@register.filter
def percent_of(part: int, whole: int) -> int:
    """`part` in whole per cent of `whole`, 0 when there is no whole, at most 100."""
    return min(100, max(0, int(part)) * 100 // int(whole)) if whole else 0


@register.simple_tag
def meter(percent: int, label: str, *, hold: int = 0, kind: str = "") -> SafeString:
    """A bar. `label` says in words what it shows; `hold` is a pale part after the filled one, in per cent.

    Green, amber from 80, red from 95; `kind="plain"` for a share that is neither good nor bad.
    """
    percent, hold = min(100, max(0, int(percent))), min(100, max(0, int(hold)))
    kind = kind or ("bad" if percent >= _METER_BAD else "warn" if percent >= _METER_WARN else "good")
    return format_html(
        '<svg class="meter" role="img" aria-label="{}"><rect class="track" width="100%" height="8"/>'
        '<rect class="fill {}" width="{}%" height="8"/><rect class="hold" x="{}%" width="{}%" height="8"/></svg>',
        label,
        kind,
        percent,
        percent,
        min(hold, 100 - percent),
    )


@register.simple_tag
def avail(free: int, total: int) -> SafeString:
    """How many of an offer are free now, as eight bars and in words."""
    lit = max(1, round(free * _AVAIL_BARS / total)) if free and total else 0
    width = (_AVAIL_WIDTH - _AVAIL_GAP * (_AVAIL_BARS - 1)) / _AVAIL_BARS
    bars = format_html_join(
        "",
        '<rect class="{}" x="{}" width="{}" height="10" rx="1.5"/>',
        (("on" if n < lit else "off", f"{n * (width + _AVAIL_GAP):.2f}", f"{width:.2f}") for n in range(_AVAIL_BARS)),
    )
    words = gettext("%(free)s of %(total)s free") % {"free": integer(free), "total": integer(total)}
    return format_html(
        '<span class="avail"><svg viewBox="0 0 52 10" aria-hidden="true">{}</svg><span class="num">{}</span></span>',
        bars,
        words,
    )


@register.inclusion_tag("components/ribbon.html")
def ribbon(stretches: Iterable[Any], label: str) -> dict[str, Any]:
    """Charged (solid), free (hatched) and left (pale) stretches in order of time.

    A stretch has `kind` (`charged`, `free` or `left`) and `seconds`, as keys or attributes. `label` tells the same in
    words. A stretch too short to be seen is widened, and the drawing then says that it is not to scale.
    """
    spans = [(str(_of(s, "kind")), int(_of(s, "seconds"))) for s in stretches]
    spans = [span for span in spans if span[1] > 0]
    widths, widened = drawings.ribbon_widths([seconds for _, seconds in spans])
    bars, x = [], 0.0
    for (kind, _), width in zip(spans, widths, strict=True):
        bars.append({"kind": kind, "x": f"{x:.3f}", "width": f"{width:.3f}"})
        x += width
    return {"bars": bars, "label": label, "widened": widened}


@register.inclusion_tag("components/timeline.html")
def timeline(events: Iterable[Any]) -> dict[str, Any]:
    """What happened to a lease, in the order given.

    An event has `state` (a lease state: colour and glyph) and `title`; `why` (a sentence), `at` (datetime), `icon` (a
    Lucide name in place of the glyph) and `todo` (a step still to come) may be missing. Keys or attributes.
    """
    names = ("state", "title", "why", "at", "icon", "todo")
    return {"events": [{name: _of(event, name) for name in names} for event in events]}


def _of(thing: object, name: str) -> Any:
    """A key of a mapping or an attribute, None where there is none."""
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


@register.inclusion_tag("components/copyline.html")
def copyline(text: str, prompt: str = "$ ", label: str = "") -> dict[str, str]:
    """One line to copy. The prompt is shown and not copied; `label` names it for screen readers."""
    return {"text": text, "prompt": prompt, "label": label or gettext("Command")}


# ---------------------------------------------------------------- forms and shell


@register.inclusion_tag("components/field.html")
def field(
    bound: BoundField, *, hint: str = "", unit: str = "", lead: str = "", optional: bool = False
) -> dict[str, Any]:
    """A form field with label, control, hint and errors, tied together for screen readers.

    `hint` replaces the field's help text; `unit` stands inside the control on the right, `lead` on the left.
    """
    name = bound.auto_id or bound.html_name
    shown_hint = hint or bound.help_text
    described = [f"{name}-hint"] * bool(shown_hint) + [f"{name}-error"] * bool(bound.errors)
    attributes: dict[str, Any] = {"aria-describedby": " ".join(described)} if described else {}
    if bound.errors:
        attributes["aria-invalid"] = "true"
    placeholder = str(bound.field.widget.attrs.get("placeholder", ""))
    if placeholder.casefold().startswith(str(bound.label).casefold()):
        attributes["placeholder"] = False  # allauth repeats the label; False leaves the attribute out
    return {
        "bound": bound,
        "control": bound.as_widget(attrs=attributes),
        "is_check": isinstance(bound.field.widget, CheckboxInput),
        "name": name,
        "hint": shown_hint,
        "unit": unit,
        "lead": lead,
        "optional": optional,
    }


@register.simple_tag
def site_name() -> str:
    """What this installation calls itself."""
    return str(settings.SITE_NAME)


# url name, words, icon, what the url names of its pages start with
_Page = tuple[str, str | Promise, str, tuple[str, ...]]
_PUBLIC_PAGES: list[_Page] = [("catalog", gettext_lazy("GPUs"), "cpu", ("catalog", "rent"))]
_PRIVATE_PAGES: list[_Page] = [
    ("leases", gettext_lazy("Leases"), "square-terminal", ("lease",)),
    ("balance", gettext_lazy("Billing"), "receipt-text", ("balance", "receipt")),
    ("ssh-keys", gettext_lazy("Access"), "key-round", ("ssh-key", "api-token")),
]


@register.simple_tag(takes_context=True)
def nav_items(context: Context) -> list[dict[str, Any]]:
    """The main navigation, once for the bar at the top and the one at the bottom of a phone."""
    signed_in = getattr(context.get("user"), "is_authenticated", False)
    here = _url_name(context.get("request"))
    return [
        {"url": reverse(name), "label": label, "icon": picture, "current": here.startswith(prefixes)}
        for name, label, picture, prefixes in [*_PUBLIC_PAGES, *(_PRIVATE_PAGES if signed_in else [])]
    ]


def _url_name(request: HttpRequest | None) -> str:
    match = getattr(request, "resolver_match", None)
    return (match.url_name or "") if match else ""


@register.simple_tag
def format_data() -> SafeString:
    """What `app.js` needs to write numbers and durations as the server does: `data-format` of the html element."""
    style = _style()
    words = {"hours": style.hours, "minutes": style.minutes, "seconds": style.seconds}
    return format_html(
        ' data-format="{}"',
        json.dumps({"decimal": style.decimal, "group": style.group, **words}, ensure_ascii=False),
    )
