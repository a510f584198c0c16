"""Forms of the rental pages. They read what people type; requests, quotes and services judge it."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from django import forms
from django.conf import settings
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from billing import money
from billing.models import Plan
from portal.forms import ServiceForm
from rental import idle_words
from rental.catalog import ORDERED_PLANS
from rental.requests import DEFAULT_INACTIVE_TIMEOUT_S, MAX_GPUS, LeaseRequest, parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portal.errors import DomainError
    from portal.models import SshKey
    from rental.catalog import Offer

HOUR_S = 3600
MOST_BUTTONS = 8
IDLE_TIMEOUTS_S = (900, DEFAULT_INACTIVE_TIMEOUT_S, 3600, 14_400)
OFF = "off"
# What a service calls a field, and what the form does.
FORM_NAMES = {
    "max_duration_s": "max_hours",
    "inactive_timeout_s": "idle_timeout",
    "spend_cap_micros": "spend_cap",
    "ssh_key_ids": "ssh_keys",
}


class OffersForm(forms.Form):
    """Filters of the catalog; a value that is not offered is as good as none."""

    gpu_model = forms.CharField(required=False, max_length=96)
    gpu_count = forms.IntegerField(required=False, min_value=1, max_value=MAX_GPUS)
    gpu_memory_gb = forms.IntegerField(required=False, min_value=1, max_value=10_000)
    only_free = forms.BooleanField(required=False)

    def filters(self) -> dict[str, Any]:
        """What rental.catalog.offers takes."""
        self.full_clean()
        said = {name: value for name, value in getattr(self, "cleaned_data", {}).items() if value}
        return {"gpu_count": 1, **said}


class HoursField(forms.DecimalField):
    """Hours with at most two decimals, in plain digits: what another country writes is refused, not reinterpreted."""

    def to_python(self, value: Any) -> Any:
        """The hours; ValidationError with an example for anything but digits and one dot (case B05)."""
        text = str(value or "").strip()
        if text and not re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,2})?", text):
            raise forms.ValidationError(_("Write hours such as 1.5: digits with a dot, no comma."))
        return super().to_python(text)


class RentForm(ServiceForm):
    """What to rent. The choices are the fleet's and the tenant's own."""

    gpu_model = forms.ChoiceField(label=_("GPU"))
    gpu_count = forms.TypedChoiceField(label=_("How many"), coerce=int, initial=1)
    plan = forms.ChoiceField(label=_("Plan"), initial=Plan.ON_DEMAND.value)
    image = forms.CharField(
        label=_("Image"),
        required=False,
        max_length=300,
        widget=forms.TextInput(attrs={"class": "mono", "spellcheck": "false", "autocapitalize": "none"}),
    )
    ssh_keys = forms.MultipleChoiceField(label=_("SSH keys"), required=False)
    max_hours = HoursField(
        label=_("End after"),
        required=False,
        min_value=Decimal("0.02"),
        max_value=Decimal(settings.MAX_DURATION_S) / HOUR_S,
        max_digits=7,
        decimal_places=2,
        widget=forms.TextInput(attrs={"inputmode": "decimal"}),
    )
    idle_timeout = forms.ChoiceField(label=_("Release when idle for"), required=False)
    spend_cap = forms.CharField(
        label=_("Spend at most"),
        required=False,
        max_length=20,
        widget=forms.TextInput(attrs={"inputmode": "decimal", "placeholder": _("no limit")}),
    )
    name = forms.CharField(
        label=_("Name"),
        required=False,
        max_length=80,
        widget=forms.TextInput(attrs={"placeholder": _("for example llama-finetune"), "autocomplete": "off"}),
    )

    def __init__(self, data: Any = None, *, offers: Sequence[Offer], keys: Sequence[SshKey], **options: Any) -> None:
        super().__init__(data, **options)
        most = max((offer.max_gpu_count for offer in offers), default=1)
        counts = sorted({*range(1, min(most, MOST_BUTTONS) + 1), most})
        self.choose("gpu_model", [(offer.gpu_model, offer.short_name) for offer in offers])
        self.choose("gpu_count", [(n, str(n)) for n in counts])
        self.choose("plan", [(plan, str(Plan(plan).label)) for plan in ORDERED_PLANS])
        self.choose("idle_timeout", idle_choices())
        self.choose("ssh_keys", [(key.pk, key.name) for key in keys])
        self.fields["image"].initial = settings.DEFAULT_IMAGE
        self.fields["ssh_keys"].initial = [key.pk for key in keys]
        self.fields["idle_timeout"].initial = str(min(DEFAULT_INACTIVE_TIMEOUT_S, settings.IDLE_TIMEOUT_MAX_S))
        self.fields["max_hours"].initial = hours_text(settings.MAX_DURATION_S)

    def choose(self, name: str, choices: list[tuple[Any, str]]) -> None:
        """Set the choices of a field."""
        field = self.fields[name]
        assert isinstance(field, forms.ChoiceField)  # noqa: S101  # narrows the type; the class says so
        field.choices = choices

    def clean_spend_cap(self) -> int | None:
        """The cap in µ; None without one."""
        text = self.cleaned_data["spend_cap"].strip()
        if not text:
            return None
        try:
            return money.parse_amount(text, settings.CURRENCY)
        except (money.UnreadableAmountError, money.AmountTooLargeError) as error:
            raise forms.ValidationError(_("Write an amount such as 20.00, or leave it empty.")) from error

    def request(self) -> LeaseRequest:
        """The order, without its name: a name may change after the price was made. Raises InvalidInput."""
        said = self.cleaned_data
        every = {value for value, _label in self.fields["ssh_keys"].choices}  # type: ignore[attr-defined]
        chosen = said["ssh_keys"]
        wanted = {
            "gpu_model": said["gpu_model"],
            "gpu_count": said["gpu_count"],
            "plan": said["plan"],
            "image": said["image"] or None,
            "ssh_key_ids": None if set(chosen) == every else chosen,
            "inactive_timeout_s": _idle_timeout(said["idle_timeout"]),
            "max_duration_s": int(said["max_hours"] * HOUR_S) if said["max_hours"] else None,
            "spend_cap_micros": said["spend_cap"],
        }
        return parse(wanted)

    def refuse(self, error: DomainError) -> None:
        """Show a domain error at the fields of the form that stand for those it names."""
        for name, sentences in error.errors.items():
            field = FORM_NAMES.get(name, name)
            # The service counts a cap in millionths.
            told = [str(_("This does not pay for one minute of the lease."))] if field == "spend_cap" else sentences
            self.add_error(field if field in self.fields else None, told)
        if not error.errors:
            self.add_error(None, error.detail)


def idle_choices() -> list[tuple[str, str]]:
    """Idle limits that this portal allows; its own limit stands for those above it."""
    most = settings.IDLE_TIMEOUT_MAX_S
    offered = sorted({min(seconds, most) for seconds in IDLE_TIMEOUTS_S})
    choices = [(str(seconds), idle_words.span(seconds)) for seconds in offered]
    return [*choices, (OFF, gettext("never"))] if settings.IDLE_OFF_ALLOWED else choices


def _idle_timeout(chosen: str) -> int | str | None:
    return int(chosen) if chosen.isdecimal() else chosen or None


def hours_text(seconds: int) -> str:
    """Seconds as hours, with decimals only where they are needed."""
    return f"{Decimal(seconds) / HOUR_S:.2f}".rstrip("0").rstrip(".")
