"""The form that gives a lease other limits; on its own page and in a dialog of the lease page."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from django import forms
from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing import money
from portal.forms import ServiceForm
from rental.forms import FORM_NAMES, HOUR_S, HoursField, hours_text

if TYPE_CHECKING:
    from portal.errors import DomainError
    from rental.models import Lease


class ExtendForm(ServiceForm):
    """The limits of a lease as people type them: hours from ready, an amount of its currency."""

    max_hours = HoursField(
        label=gettext_lazy("End after"),
        min_value=Decimal("0.02"),
        max_value=Decimal(settings.MAX_DURATION_S) / HOUR_S,
        max_digits=7,
        decimal_places=2,
        widget=forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off"}),
    )
    spend_cap = forms.CharField(
        label=gettext_lazy("Spend at most"),
        required=False,
        max_length=40,
        widget=forms.TextInput(
            attrs={"inputmode": "decimal", "autocomplete": "off", "placeholder": gettext_lazy("no limit")}
        ),
    )

    def __init__(self, data: Any = None, *, lease: Lease) -> None:
        cap = lease.spend_cap_micros
        shown = "" if cap is None else money.amount_text(cap, lease.currency)
        super().__init__(data, initial={"max_hours": hours_text(lease.max_duration_s), "spend_cap": shown})
        self.lease = lease

    def clean_spend_cap(self) -> int | None:
        """The cap in µ; None without one."""
        text = self.cleaned_data["spend_cap"].strip()
        if not text:
            return None
        try:
            return money.parse_amount(text, self.lease.currency)
        except (money.UnreadableAmountError, money.AmountTooLargeError) as error:
            raise forms.ValidationError(_("Write an amount such as 20.00, or leave it empty.")) from error

    def wanted(self) -> dict[str, Any]:
        """What differs from the lease: a field that shows a rounded number, and was not touched, changes nothing."""
        said: dict[str, Any] = {}
        if "max_hours" in self.changed_data:
            said["max_duration_s"] = int(self.cleaned_data["max_hours"] * HOUR_S)
        if "spend_cap" in self.changed_data:
            said["spend_cap_micros"] = self.cleaned_data["spend_cap"]
        return said

    def refuse(self, error: DomainError) -> None:
        """Show a domain error at the fields of the form that stand for those it names."""
        for name, sentences in error.errors.items():
            field = FORM_NAMES.get(name, name)
            # The service counts in seconds and millionths.
            told = {
                "max_hours": _("It must go on for a minute at least. To end it now, stop it."),
                "spend_cap": _("This does not pay for what is used and one minute more."),
            }.get(field, sentences[0])
            self.add_error(field if field in self.fields else None, told)
        if not error.errors:
            self.add_error(None, error.detail)
