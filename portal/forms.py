"""Forms of the access pages. They parse; the services judge."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django import forms
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal.keys import MAX_NAME as MAX_KEY_NAME
from portal.tokens import MAX_NAME, SCOPES

if TYPE_CHECKING:
    from datetime import datetime

    from portal.errors import DomainError

DEFAULT_SCOPES = ["offers:read", "leases:read"]


class ServiceForm(forms.Form):
    """A form whose fields a service may still refuse."""

    def refuse(self, error: DomainError) -> None:
        """Show a domain error at the fields it names, else above the form."""
        for name, sentences in error.errors.items():
            self.add_error(name if name in self.fields else None, sentences)
        if not error.errors:
            self.add_error(None, error.detail)


class Unechoed(forms.Textarea):
    """A text area that never shows again what was pasted: it may be a private key."""

    def format_value(self, value: Any) -> str:
        """Always empty."""
        return ""


class KeyForm(ServiceForm):
    """Add an SSH key."""

    public_key = forms.CharField(
        label=_("Public key"),
        strip=False,
        help_text=_("The file that ends in .pub. Private keys and RSA below 3072 bits are refused."),
        widget=Unechoed(
            attrs={"rows": 4, "class": "mono", "spellcheck": "false", "placeholder": "ssh-ed25519 AAAA… you@laptop"}
        ),
    )
    name = forms.CharField(
        label=_("Name"),
        required=False,
        max_length=MAX_KEY_NAME,
        help_text=_("Empty: the comment at the end of the key."),
    )


class TokenForm(ServiceForm):
    """Create an API token."""

    LIVES = {"7": _("7 days"), "30": _("30 days"), "90": _("90 days"), "365": _("1 year"), "never": _("never")}

    name = forms.CharField(label=_("Name"), max_length=MAX_NAME, help_text=_("Where it will be used."))
    ends = forms.ChoiceField(label=_("Ends after"), choices=list(LIVES.items()), initial="90")
    scopes = forms.MultipleChoiceField(
        label=_("What it may do"),
        choices=list(SCOPES.items()),
        initial=DEFAULT_SCOPES,
        widget=forms.CheckboxSelectMultiple,
    )

    def expires_at(self) -> datetime | None:
        """The chosen end, counted from now."""
        days = self.cleaned_data["ends"]
        return None if days == "never" else timezone.now() + timedelta(days=int(days))
