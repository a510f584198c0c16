"""API v1 of rentals: offers, quotes, leases, events, receipts. Each view parses, calls one service, answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.db.models import Q
from django.utils import timezone
from django.utils.cache import get_conditional_response
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.response import Response
from rest_framework.views import APIView

from portal import rate_limits
from portal.actor import Actor
from portal.api import caller
from portal.errors import InvalidInput, NotFound
from portal.models import Tenant, User
from portal.pagination import Cursor
from portal.permissions import PUBLIC
from portal.ready import Ready
from portal.services import current_tenant
from rental import catalog, extend, lease_tag, receipts, requests, services
from rental.models import Lease, LeaseEvent
from rental.serializers import (
    EventOut,
    ExtendIn,
    LeaseIn,
    LeaseOut,
    LeasesIn,
    OfferOut,
    OffersIn,
    OffersOut,
    QuoteIn,
    QuoteOut,
    ReceiptOut,
    lease_answers,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.http.response import HttpResponseBase
    from rest_framework.request import Request

    from rental.models import LeaseQuerySet


def leases_of(request: Request) -> LeaseQuerySet:
    """The leases of the tenant this caller works for; anything else is 404."""
    visible = Lease.objects.visible_to(caller(request)).filter(tenant=tenant_of(request))
    return visible.select_related("node", "activity")


def tenant_of(request: Request) -> Tenant:
    """The tenant of the token or session."""
    return current_tenant(request)


def polled_lease(request: Request, lease_id: str) -> Lease:
    """As one_lease, with what its tag needs."""
    found = _POLLED.rows(user=caller(request).pk, tenant=tenant_of(request).pk, lease=lease_id)
    if not found:
        raise NotFound(NO_LEASE)
    lease: Lease = found[0]
    return lease


def _polled(user: str, tenant: str, lease: str) -> LeaseQuerySet:
    visible = Lease.objects.visible_to(User(pk=user)).filter(tenant=tenant, pk=lease)
    return lease_tag.with_last_event(visible.select_related("node", "activity").order_by())


NO_LEASE: Final = "There is no such lease."
_POLLED: Final = Ready(_polled, user="?user", tenant="?tenant", lease="?lease")


def one_lease(request: Request, lease_id: str) -> Lease:
    """A lease the caller may see. NotFound for every other id, existing or not (case H03)."""
    lease = polled_lease(request, lease_id)
    lease.tenant = tenant_of(request)  # has been read with the token or session
    return lease


def body_of(request: Request) -> Mapping[str, Any]:
    """The JSON object of the body; InvalidInput for a list, text or number."""
    if not isinstance(request.data, dict):
        raise InvalidInput("The body must be a JSON object.", errors={"body": ["a JSON object is accepted."]})
    return request.data


class Offers(APIView):
    """What can be rented now, and for how much."""

    scopes = {"GET": PUBLIC}

    @extend_schema(operation_id="list_offers", parameters=[OffersIn], responses=OffersOut)
    def get(self, request: Request) -> Response:
        """What can be rented now, and for how much. Public; cheapest on-demand price first."""
        said = OffersIn(data=request.query_params.dict())
        said.is_valid(raise_exception=True)
        rows = catalog.offers(**said.validated_data)
        return Response({"results": OfferOut(rows, many=True).data})


class Quotes(APIView):
    """Prices that hold for five minutes."""

    scopes = {"POST": "leases:write"}

    @extend_schema(operation_id="create_quote", request=QuoteIn, responses=QuoteOut)
    def post(self, request: Request) -> Response:
        """A signed price that holds for five minutes. Writes nothing; one quote yields at most one lease, ever."""
        rate_limits.take(rate_limits.quotes(), tenant_of(request).pk)
        _note_tries(request)
        quote = services.build_quote(
            tenant=tenant_of(request), user=caller(request), request=requests.parse(body_of(request))
        )
        return Response(QuoteOut(quote).data)


class Leases(APIView):
    """The tenant's leases."""

    scopes = {"GET": "leases:read", "POST": "leases:write"}
    pagination_class = Cursor
    cursor_by = "-requested_at"

    @extend_schema(operation_id="list_leases", parameters=[LeasesIn], responses=LeaseOut(many=True))
    def get(self, request: Request) -> Response:
        """The tenant's leases, newest first."""
        said = LeasesIn(data=request.query_params.dict())
        said.is_valid(raise_exception=True)
        rows = leases_of(request)
        if wanted := said.validated_data.get("state"):
            rows = rows.filter(state=wanted)
        if words := said.validated_data.get("q"):
            rows = rows.filter(Q(name__icontains=words) | Q(pk=words))
        page = Cursor()
        found = page.paginate_queryset(rows, request, self)
        return page.get_paginated_response(lease_answers(found, timezone.now()))

    @extend_schema(operation_id="create_lease", request=LeaseIn, responses={201: LeaseOut, 200: LeaseOut})
    def post(self, request: Request) -> Response:
        """Order what was quoted. 201; 200 when this quote already has its lease: the quote is the idempotency key.

        402 `insufficient_funds`, 409 `no_capacity` with reasons, 409 `offer_changed`. A refusal leaves nothing behind.
        """
        rate_limits.take(rate_limits.orders(), tenant_of(request).pk)
        _note_tries(request)
        said = LeaseIn(data=request.data)
        said.is_valid(raise_exception=True)
        lease, created = services.request_lease(
            tenant=tenant_of(request),
            actor=Actor.of(request),
            quote_token=said.validated_data["quote"],
            name=said.validated_data["name"],
        )
        answer = Response(shown(lease), status=status.HTTP_201_CREATED if created else status.HTTP_200_OK)
        answer["Location"] = f"/api/v1/leases/{lease.pk}"
        return answer


class OneLease(APIView):
    """One lease."""

    scopes = {"GET": "leases:read"}

    @extend_schema(operation_id="get_lease", responses=LeaseOut)
    def get(self, request: Request, lease_id: str) -> HttpResponseBase:
        """One lease. Its ETag changes with everything but the counters; with If-None-Match the answer may be 304."""
        lease, now = polled_lease(request, lease_id), timezone.now()
        tag = lease_tag.of(lease, now)
        answer = get_conditional_response(request._request, etag=tag) if tag else None  # noqa: SLF001  # DRF's way
        if answer is None:
            answer = Response(lease_answers([lease], now)[0])
        if tag:
            answer["ETag"] = tag
        answer["Cache-Control"] = "private, no-cache"
        return answer


class StopLease(APIView):
    """Release a lease."""

    scopes = {"POST": "leases:write"}

    @extend_schema(operation_id="stop_lease", request=None, responses=LeaseOut)
    def post(self, request: Request, lease_id: str) -> Response:
        """Release a lease: charging ends now. Before it is ready: cancelled, free of charge. Repeating is harmless."""
        _no_body(request)
        return Response(shown(services.stop_lease(lease=one_lease(request, lease_id), actor=Actor.of(request))))


class KeepLease(APIView):
    """Keep a lease that was idle."""

    scopes = {"POST": "leases:write"}

    @extend_schema(operation_id="keep_lease", request=None, responses=LeaseOut)
    def post(self, request: Request, lease_id: str) -> Response:
        """Say that you are there: the idle clock starts again. 409 `illegal_state` unless it runs."""
        _no_body(request)
        return Response(shown(services.keep_lease(lease=one_lease(request, lease_id), actor=Actor.of(request))))


class ExtendLease(APIView):
    """Other limits for a lease."""

    scopes = {"POST": "leases:write"}

    @extend_schema(operation_id="extend_lease", request=ExtendIn, responses=LeaseOut)
    def post(self, request: Request, lease_id: str) -> Response:
        """Give it another `max_duration_s` (from ready) or `spend_cap_micros` (null: none); what is missing stays.

        Longer or shorter, but not less than a minute from now. The price stays. 409 `illegal_state` when it is over
        or at its end, 402 `insufficient_funds` or 409 `month_cap_reached` when its next hour cannot be set aside.
        """
        lease = one_lease(request, lease_id)
        extend.extend_lease(lease=lease, actor=Actor.of(request), wanted=body_of(request))
        return Response(shown(one_lease(request, lease_id)))


class LeaseEvents(APIView):
    """What happened to a lease."""

    scopes = {"GET": "leases:read"}
    pagination_class = Cursor

    @extend_schema(operation_id="list_lease_events", responses=EventOut(many=True))
    def get(self, request: Request, lease_id: str) -> Response:
        """What happened to a lease, oldest first."""
        page = Cursor()
        rows = page.paginate_queryset(LeaseEvent.objects.filter(lease=one_lease(request, lease_id)), request, self)
        return page.get_paginated_response(EventOut(rows, many=True).data)


class LeaseReceipt(APIView):
    """What a lease cost, second by second."""

    scopes = {"GET": "leases:read"}

    @extend_schema(operation_id="get_lease_receipt", responses=ReceiptOut)
    def get(self, request: Request, lease_id: str) -> Response:
        """What a lease cost: charged stretches, the gaps between them with their reason, the exact sum."""
        return Response(ReceiptOut(receipts.receipt(one_lease(request, lease_id))).data)


def shown(lease: Lease) -> dict[str, Any]:
    """One lease as the API shows it."""
    return lease_answers([lease], timezone.now())[0]


def _note_tries(request: Request) -> None:
    """A field that would set up the container is refused as any unknown one; that it was tried is kept (case H07)."""
    names = requests.container_settings(body_of(request))
    if names:
        services.note_refused_settings(tenant=tenant_of(request), actor=Actor.of(request), names=names)


def _no_body(request: Request) -> None:
    if request.data:
        first = str(next(iter(request.data)))[:64] if isinstance(request.data, dict) else "body"
        raise InvalidInput.field(first, "this action takes no fields.")
