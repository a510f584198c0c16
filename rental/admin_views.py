"""Pages behind the buttons of the operators' lease page: each says what will happen, then calls one service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from nodes import broker
from portal.actor import Actor
from portal.errors import DomainError
from portal.services import audit
from rental import services
from rental.models import Lease
from rental.states import OPEN, EndReason, State

if TYPE_CHECKING:
    from django.contrib.admin import AdminSite
    from django.http import HttpRequest, HttpResponse


class StopForm(forms.Form):
    """Why: the renter reads it."""

    reason = forms.CharField(label=_("Reason"), max_length=500, help_text=_("The renter sees it on the lease's page."))


def stop(request: HttpRequest, site: AdminSite, lease_id: str) -> HttpResponse:
    """End a lease as the operator, with the reason."""
    lease = _get(request, lease_id)
    form = StopForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        if lease.state not in OPEN or lease.state == State.STOPPING:
            messages.info(request, _("The lease was stopping already, or is over."))
        else:
            _stop(request, lease, form.cleaned_data["reason"])
        return HttpResponseRedirect(_back(lease))
    explains = _(
        "Charging ends now. The container is stopped and deleted with everything in it; the GPUs are cleaned and come"
        " free. A lease that is not ready yet costs nothing."
    )
    return _page(request, site, lease, title=_("Stop now"), explains=explains, form=form)


def wake(request: HttpRequest, site: AdminSite, lease_id: str) -> HttpResponse:
    """Tell the lease's node to look at it now."""
    lease = _get(request, lease_id)
    if request.method == "POST":
        if lease.node_id is None:
            messages.error(request, _("The lease has no node."))
        else:
            _wake(request, lease)
            messages.success(request, _("The node was told to fetch what this lease should be."))
        return HttpResponseRedirect(_back(lease))
    explains = _("The node is told to fetch the wanted state of this lease now, not with its next pull.")
    return _page(request, site, lease, title=_("Wake the node"), explains=explains)


def _stop(request: HttpRequest, lease: Lease, reason: str) -> None:
    try:
        services.stop_lease(lease=lease, actor=Actor.of(request), reason=EndReason.OPERATOR, detail=reason)
    except DomainError as error:
        messages.error(request, error.detail)
    else:
        messages.success(request, _("The lease stops. Nothing more is charged."))


@transaction.atomic
def _wake(request: HttpRequest, lease: Lease) -> None:
    broker.wake(node_id=str(lease.node_id), lease_id=lease.pk)
    audit(actor=Actor.of(request), action="lease.woken", obj=lease, tenant=lease.tenant)


def _get(request: HttpRequest, lease_id: str) -> Lease:
    if not request.user.has_perm("rental.change_lease"):
        raise PermissionDenied
    return get_object_or_404(Lease.objects.select_related("tenant", "node"), pk=lease_id)


def _back(lease: Lease) -> str:
    return reverse("admin:rental_lease_change", args=[lease.pk])


def _page(request: HttpRequest, site: AdminSite, lease: Lease, **context: Any) -> TemplateResponse:
    facts = {**site.each_context(request), "lease": lease, "back": _back(lease), **context}
    return TemplateResponse(request, "admin/rental/confirm.html", facts)
