"""The page that gives a lease other limits; the lease page shows the same form in a dialog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.shortcuts import redirect, render
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views import View

from portal.actor import Actor
from portal.errors import DomainError
from rental import extend, views
from rental.extend_form import ExtendForm
from rental.states import BEFORE_READY, State

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

    from rental.models import Lease


@method_decorator(login_required, name="dispatch")
class ExtendLease(View):
    """Ask, then give it other limits."""

    def get(self, request: HttpRequest, lease_id: str) -> HttpResponse:
        """The form; a lease that is over or stops goes back to its page."""
        lease = views.find(request, lease_id)
        if lease.state not in {*BEFORE_READY, State.RUNNING}:
            return redirect("lease", lease.pk)
        return _page(request, lease, ExtendForm(lease=lease))

    def post(self, request: HttpRequest, lease_id: str) -> HttpResponse:
        """Change it; what is refused stands at its field."""
        lease = views.find(request, lease_id)
        form = ExtendForm(request.POST, lease=lease)
        if not form.is_valid():
            return _page(request, lease, form, status=400)
        wanted = form.wanted()
        if wanted:
            try:
                extend.extend_lease(lease=lease, actor=Actor.of(request), wanted=wanted)
            except DomainError as error:
                form.refuse(error)
                return _page(request, lease, form, status=error.status)
            messages.success(request, _("Changed. The price stays as ordered."))
        return redirect("lease", lease.pk)


def _page(request: HttpRequest, lease: Lease, form: ExtendForm, status: int = 200) -> HttpResponse:
    facts = {"lease": lease, "form": form, "most_s": settings.MAX_DURATION_S, "running": lease.state == State.RUNNING}
    return render(request, "rental/extend.html", facts, status=status)
