"""The page on which an owner deletes an organisation: what follows, and the question. It is here to know of leases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from allauth.account.decorators import reauthentication_required
from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.actor import Actor
from portal.errors import DomainError
from portal.forms import ServiceForm
from portal.models import ApiToken, Tenant
from portal.organisation_deletion import delete_organisation
from portal.roles import Act, may
from portal.tenant_views import TenantView
from rental import organisations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from billing.models import Account

fresh_proof = method_decorator(reauthentication_required(app="allauth.account"))


class OrganisationDeletionForm(ServiceForm):
    """The name, typed; and the remaining balance given up, where there is one."""

    name = forms.CharField(
        label=gettext_lazy("Name of the organisation"),
        help_text=gettext_lazy("Type it to confirm that you mean this organisation."),
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    give_up_balance = forms.BooleanField(
        label=gettext_lazy("The remaining balance is given up"),
        error_messages={"required": gettext_lazy("Confirm this, or use the balance up first.")},
    )

    def __init__(self, *args: Any, balances: Sequence[Account], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not any(account.balance_ticks > 0 for account in balances):
            del self.fields["give_up_balance"]


class DeleteOrganisation(TenantView):
    """State the effects, ask, delete. Needs a fresh proof of who it is; 404 for who is no owner."""

    @fresh_proof
    def get(self, request: HttpRequest, tenant_id: str) -> HttpResponse:
        """The effects and the question."""
        return self._ask(request, None, 200)

    @fresh_proof
    def post(self, request: HttpRequest, tenant_id: str) -> HttpResponse:
        """Delete it."""
        form = OrganisationDeletionForm(request.POST, balances=organisations.balances(self.tenant))
        if form.is_valid():
            try:
                delete_organisation(tenant=self.tenant, actor=Actor.of(request), **form.cleaned_data)
            except DomainError as error:
                form.refuse(error)
            else:
                messages.success(request, _("“%(name)s” is deleted.") % {"name": self.tenant.name})
                return redirect("tenants")
        return self._ask(request, form, 400)

    def _ask(self, request: HttpRequest, form: OrganisationDeletionForm | None, status: int) -> HttpResponse:
        if not may(self.mine.role, Act.DELETE) or self.tenant.kind == Tenant.Kind.PERSONAL:
            raise Http404
        balances = organisations.balances(self.tenant)
        facts = {
            "shown": self.tenant,
            "form": form or OrganisationDeletionForm(balances=balances),
            "balances": balances,
            "going": organisations.going(self.tenant),
            "others": self.tenant.memberships.count() - 1,
            "tokens": ApiToken.objects.usable().filter(tenant=self.tenant).count(),
        }
        return render(request, "tenant/delete.html", facts, status=status)
