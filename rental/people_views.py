"""The page on which a person deletes their account: what follows, and the question. It is here to know of leases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from allauth.account.decorators import reauthentication_required
from django import forms
from django.contrib import messages
from django.contrib.auth import logout
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views import View

from billing.models import Account
from portal import deletion
from portal.actor import Actor
from portal.errors import DomainError
from portal.forms import ServiceForm
from portal.models import User
from rental import people
from rental.models import Lease

if TYPE_CHECKING:
    from collections.abc import Sequence


class DeletionForm(ServiceForm):
    """The address, typed; and the remaining balance given up, where there is one."""

    email = forms.CharField(
        label=gettext_lazy("Your e-mail address"),
        strip=True,
        help_text=gettext_lazy("Type it to confirm that you mean this account."),
        widget=forms.TextInput(attrs={"autocomplete": "off", "inputmode": "email", "spellcheck": "false"}),
    )
    give_up = forms.BooleanField(
        label=gettext_lazy("I give up the remaining balance"),
        error_messages={"required": gettext_lazy("Confirm this, or use the balance up first.")},
    )

    def __init__(self, *args: Any, user: User, balances: Sequence[Account], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.user = user
        if not any(account.balance_ticks > 0 for account in balances):
            del self.fields["give_up"]

    def clean_email(self) -> str:
        """It must be this account's."""
        typed = str(self.cleaned_data["email"])
        if typed.casefold() != self.user.email.casefold():
            raise forms.ValidationError(_("This is not the address of this account."), code="other_address")
        return typed


@method_decorator(reauthentication_required(app="allauth.account"), name="dispatch")
class DeleteAccount(View):
    """State the effects, ask, delete. Needs a fresh proof of who it is."""

    def get(self, request: HttpRequest) -> HttpResponse:
        """The effects and the question."""
        return self._page(request, None, 200)

    def post(self, request: HttpRequest) -> HttpResponse:
        """Delete and sign out."""
        user = _person(request)
        form = DeletionForm(request.POST, user=user, balances=_balances(user))
        if form.is_valid():
            try:
                deletion.delete_account(user=user, actor=Actor.of(request))
            except DomainError as error:
                form.refuse(error)
            else:
                logout(request)
                messages.info(request, _("Your account is deleted."))
                return redirect("catalog")
        return self._page(request, form, 400)

    def _page(self, request: HttpRequest, form: DeletionForm | None, status: int) -> HttpResponse:
        user = _person(request)
        found, balances = deletion.effects(user), _balances(user)
        facts = {
            "form": form or DeletionForm(user=user, balances=balances),
            "effects": found,
            "balances": balances,
            "stopped": _going(found.alone),
            "staying": _going(found.left).filter(created_by=user),
        }
        return render(request, "account/delete.html", facts, status=status)


def _person(request: HttpRequest) -> User:
    if not isinstance(request.user, User):
        raise Http404
    return request.user


def _balances(user: User) -> list[Account]:
    """What is on the accounts of the tenants that close with this one, debts too."""
    alone = deletion.effects(user).alone
    return list(
        Account.objects.filter(tenant__in=alone).exclude(balance_ticks=0).select_related("tenant").order_by("pk")
    )


def _going(tenants: Sequence[Any]) -> Any:
    return Lease.objects.filter(tenant__in=tenants, state__in=people.STILL_GOING).select_related("tenant")
