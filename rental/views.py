"""Pages of the catalog and of leases. Each view parses, calls one service, renders; the form is in rent_views.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views import View

from billing import money
from portal.actor import Actor
from portal.errors import DomainError
from portal.models import User
from portal.services import current_tenant
from rental import access, catalog, idle_shown, lease_page, receipts, services, words
from rental.forms import OffersForm
from rental.requests import MAX_GPUS
from rental.states import OPEN, State

if TYPE_CHECKING:
    from portal.models import Tenant
    from rental.catalog import Offer
    from rental.models import Lease

# The receipt on the landing page: an example with the numbers of a real calculation.
EXAMPLE = {"seconds": 13_338, "micros_per_hour": 4_980_000, "before_s": 59, "after_s": 21}


class Catalog(View):
    """What can be rented, for how much, and what is free now. Public."""

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page; htmx takes the table out of it."""
        return render(request, "rental/catalog.html", {**catalog_facts(request), **_landing_facts()})


def catalog_facts(request: HttpRequest) -> dict[str, Any]:
    """The offers a visitor asked for, and what the filters can be set to."""
    form = OffersForm(request.GET)
    filters = form.filters()
    market = catalog.market()
    every, shown = catalog.offers(on=market), catalog.offers(**filters, on=market)
    most = max((offer.max_gpu_count for offer in every), default=1)
    return {
        "rows": [(offer, words.reasons(offer.reasons)) for offer in shown],
        "models": [(offer.gpu_model, offer.short_name) for offer in every],
        "filters": filters,
        "filtered": any(name in request.GET for name in form.fields),
        "counts": [n for n in (1, 2, 4, 8, MAX_GPUS) if n <= most],
        "memory_steps": _memory_steps(every),
        "free_count": sum(offer.free_count for offer in every if offer.prices),
        "total_count": sum(offer.total_count for offer in every),
        "simulated": any(offer.simulated for offer in every),
    }


def _memory_steps(offers: list[Offer]) -> list[int]:
    """Sizes worth asking for: those some offer has and another has not."""
    return sorted({offer.gpu_memory_gb for offer in offers})[1:]


def _landing_facts() -> dict[str, Any]:
    seconds, rate = EXAMPLE["seconds"], EXAMPLE["micros_per_hour"]
    return {
        "example": {**EXAMPLE, "ticks": money.ticks(seconds, 1, rate)},
        "example_stretches": [
            {"kind": "free", "seconds": EXAMPLE["before_s"]},
            {"kind": "charged", "seconds": seconds},
            {"kind": "free", "seconds": EXAMPLE["after_s"]},
        ],
    }


@method_decorator(login_required, name="dispatch")
class Leases(View):
    """The tenant's leases: what is open, then what is over."""

    def get(self, request: HttpRequest) -> HttpResponse:
        """Both lists, the second one paged."""
        return render(request, "rental/leases.html", leases_facts(request))


def leases_facts(request: HttpRequest) -> dict[str, Any]:
    """The context of the list."""
    tenant = current_tenant(request)
    page = Paginator(lease_page.past_leases(tenant), lease_page.PER_PAGE).get_page(request.GET.get("page"))
    past = lease_page.rows(list(page.object_list), timezone.now())
    facts = {**open_facts(tenant), "past": past, "page": page}
    if not past and not facts["opened"]:
        facts["has_key"] = bool(access.keys_of_tenants([tenant.pk]))
    return facts


def open_facts(tenant: Tenant) -> dict[str, Any]:
    """What is open and what it costs together; the stream of the list renders it again. Two queries."""
    opened = list(lease_page.open_leases(tenant))
    running = [lease for lease in opened if lease.state == State.RUNNING]
    return {
        "opened": lease_page.rows(opened, timezone.now()),
        "running": len(running),
        "rate_micros": sum(lease.total_micros_per_hour for lease in running),
    }


@method_decorator(login_required, name="dispatch")
class OneLease(View):
    """One lease: how to get in, what it costs, what happened."""

    def get(self, request: HttpRequest, lease_id: str) -> HttpResponse:
        """The page."""
        return render(request, "rental/lease.html", lease_page.facts(find(request, lease_id), person(request)))


@method_decorator(login_required, name="dispatch")
class StopLease(View):
    """Ask, then stop. The lease page asks in a dialog; this page is the same question without JavaScript."""

    def get(self, request: HttpRequest, lease_id: str) -> HttpResponse:
        """The question."""
        lease = find(request, lease_id)
        if lease.state not in OPEN or lease.state == State.STOPPING:
            return redirect("lease", lease.pk)
        return render(request, "rental/stop.html", lease_page.facts(lease, person(request)))

    def post(self, request: HttpRequest, lease_id: str) -> HttpResponse:
        """Stop it; charging ends now. Repeating is harmless."""
        lease = find(request, lease_id)
        try:
            lease = services.stop_lease(lease=lease, actor=Actor.of(request))
        except DomainError as error:
            messages.error(request, error.detail)
        else:
            messages.success(request, _("Stopped. Nothing more is charged."))
        return redirect("lease", lease.pk)


@method_decorator(login_required, name="dispatch")
class LeaseReceipt(View):
    """What a lease cost, second by second; to read or to print."""

    def get(self, request: HttpRequest, lease_id: str) -> HttpResponse:
        """The receipt as it stands."""
        lease = find(request, lease_id)
        bill = receipts.receipt(lease)
        facts = {
            "lease": lease,
            "gpu": lease_page.gpu_name(lease),
            "bill": bill,
            "lines": [(line, words.gap(line.gap) if line.gap else "") for line in bill.lines],
            "stretches": [{"kind": "free" if line.gap else "charged", "seconds": line.seconds} for line in bill.lines],
            "free_s": sum(line.seconds for line in bill.lines if line.gap),
            "end_words": words.end_reason(lease),
            **idle_shown.end_facts(lease),
        }
        return render(request, "rental/receipt.html", facts)


def person(request: HttpRequest) -> User:
    """The signed-in user; ``login_required`` has made sure of one."""
    if not isinstance(request.user, User):
        raise Http404
    return request.user


def find(request: HttpRequest, lease_id: str) -> Lease:
    """A lease this person may see; 404 for every other id, existing or not (case H03)."""
    lease = lease_page.visible(person(request)).filter(pk=lease_id).first()
    if lease is None:
        raise Http404
    return lease
