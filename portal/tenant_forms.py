"""Forms of the tenant pages. They parse; the services judge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.utils.translation import gettext_lazy as _

from portal.forms import ServiceForm
from portal.invitations import MAX_EMAIL
from portal.members import MAX_NAME
from portal.roles import Role, givable

if TYPE_CHECKING:
    from portal.models import Membership


class OrganisationForm(ServiceForm):
    """Name an organisation, a new one or another name."""

    name = forms.CharField(label=_("Name"), max_length=MAX_NAME, help_text=_("Its members see it, and invited people."))


class InviteForm(ServiceForm):
    """Invite an address. ``giver``: who invites; the roles offered are those they may give."""

    email = forms.CharField(
        label=_("E-mail address"),
        max_length=MAX_EMAIL,
        widget=forms.EmailInput(attrs={"autocomplete": "off", "placeholder": "kim@example.org"}),
    )
    role = forms.ChoiceField(label=_("Role"), choices=Role.choices, initial=Role.MEMBER)

    def __init__(self, *args: Any, giver: Membership, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        role = self.fields["role"]
        if isinstance(role, forms.ChoiceField):
            role.choices = [(one.value, one.label) for one in givable(giver.role)]


class HandOverForm(ServiceForm):
    """Choose the next owner among the other active members."""

    member = forms.ChoiceField(label=_("New owner"))

    def __init__(self, *args: Any, others: list[Membership], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["member"]
        if isinstance(field, forms.ChoiceField):
            field.choices = [(row.user_id, f"{row.user.email} ({row.get_role_display()})") for row in others]
