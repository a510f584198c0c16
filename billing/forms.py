"""Forms of the operators' money pages. Amounts are text fields: a browser reads a number field by its own locale."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from billing.amounts import example, read_amount, read_factor, read_price
from billing.models import Account, Plan
from billing.money import amount_text
from billing.prices import DEFAULT_FACTORS, MODEL_LENGTH
from billing.top_ups import REFERENCE_LENGTH
from portal.errors import InvalidInput
from portal.forms import ServiceForm

if TYPE_CHECKING:
    from collections.abc import Callable


def _decimal(label: Any, help_text: Any = "") -> forms.CharField:
    widget = forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off"})
    return forms.CharField(label=label, help_text=help_text, max_length=40, widget=widget)


def _read(reader: Callable[..., int], *typed: str) -> int:
    """What the reader makes of typed text, its refusal as an error of the field."""
    try:
        return reader(*typed)
    except InvalidInput as error:
        raise ValidationError([sentence for sentences in error.errors.values() for sentence in sentences]) from error


class TopUpForm(ServiceForm):
    """A payment that arrived. ``cleaned_data["amount"]`` is µ."""

    amount = _decimal(_("Amount"))
    reference = forms.CharField(
        label=_("Reference"),
        max_length=REFERENCE_LENGTH,
        help_text=_("What the payment can be found by, such as the bank's transaction number. Each books once."),
    )

    def __init__(self, data: Any = None, *, currency: str) -> None:
        super().__init__(data)
        self.currency = currency
        self.fields["amount"].help_text = _("In %(currency)s, for example %(example)s.") % {
            "currency": currency,
            "example": example(currency),
        }

    def clean_amount(self) -> int:
        """µ of the typed amount."""
        micros = _read(read_amount, self.cleaned_data["amount"], self.currency)
        if not micros:
            raise ValidationError(_("Write an amount above zero."))
        return micros


class MonthCapForm(ServiceForm):
    """What a tenant spends in a calendar month at most. ``cleaned_data["cap"]`` is µ, None for no cap."""

    cap = forms.CharField(
        label=_("Spend at most per month"),
        required=False,
        max_length=40,
        widget=forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off", "placeholder": _("no limit")}),
    )

    def __init__(self, data: Any = None, *, currency: str, **options: Any) -> None:
        super().__init__(data, **options)
        self.currency = currency

    @classmethod
    def of(cls, account: Account) -> MonthCapForm:
        """The form as it stands."""
        micros = account.month_cap_micros
        text = "" if micros is None else amount_text(micros, account.currency)
        return cls(currency=account.currency, initial={"cap": text})

    def clean_cap(self) -> int | None:
        """µ of the typed amount."""
        text = self.cleaned_data["cap"].strip()
        if not text:
            return None
        micros = _read(read_amount, text, self.currency)
        if not micros:
            raise ValidationError(_("Write an amount above zero, or leave it empty for no cap."))
        return micros


class PriceForm(ServiceForm):
    """A new price. ``cleaned_data``: ``base_price`` in µ, each plan's factor in thousandths."""

    gpu_model = forms.CharField(label=_("GPU model"), max_length=MODEL_LENGTH, help_text=_("As nvidia-smi names it."))
    base_price = _decimal(_("Base price per GPU and hour"), _("With a dot, for example 2.49."))
    on_demand = _decimal(_("Factor on demand"))
    reserved = _decimal(_("Factor reserved"))
    spot = _decimal(_("Factor spot"))

    def clean_base_price(self) -> int:
        """µ per hour."""
        return _read(read_price, self.cleaned_data["base_price"])

    def clean_on_demand(self) -> int:
        """Thousandths."""
        return _read(read_factor, self.cleaned_data["on_demand"])

    def clean_reserved(self) -> int:
        """Thousandths."""
        return _read(read_factor, self.cleaned_data["reserved"])

    def clean_spot(self) -> int:
        """Thousandths."""
        return _read(read_factor, self.cleaned_data["spot"])

    @property
    def factors_milli(self) -> dict[str, int]:
        """``{plan: factor in thousandths}`` of a valid form."""
        return {plan.value: self.cleaned_data[plan.value] for plan in Plan}


def factor_text(milli: int) -> str:
    """Thousandths as they are typed: 1500 is ``1.5``."""
    whole, rest = divmod(milli, 1000)
    return f"{whole}.{rest:03d}".rstrip("0").rstrip(".")


DEFAULT_FACTOR_TEXTS = {plan: factor_text(milli) for plan, milli in DEFAULT_FACTORS.items()}
