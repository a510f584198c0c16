"""API v1 of money: the balance, and the lines behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.response import Response
from rest_framework.views import APIView

from billing import caps, money, statements
from billing.limits import set_month_cap
from billing.models import LedgerEntry
from portal.actor import Actor
from portal.api import caller
from portal.currencies import CURRENCIES
from portal.models import ROLES_THAT_PAY
from portal.pagination import Cursor
from portal.serializers import StrictSerializer
from portal.services import current_tenant, require_role

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from rest_framework.request import Request


class HoldOut(serializers.Serializer[Any]):
    """Money set aside for a lease."""

    lease = serializers.CharField()
    micros = serializers.IntegerField(help_text="Whole µ, rounded up.")
    ticks = serializers.IntegerField(help_text="Exact; 3600 ticks are 1 µ.")


class BalanceOut(serializers.Serializer[Any]):
    """Money of a tenant. Amounts in µ are rounded against the tenant; ticks are exact."""

    tenant = serializers.CharField()
    currency = serializers.CharField()
    balance_micros = serializers.IntegerField()
    held_micros = serializers.IntegerField()
    available_micros = serializers.IntegerField(help_text="Balance less holds: what a new lease may set aside.")
    balance_ticks = serializers.IntegerField()
    held_ticks = serializers.IntegerField()
    available_ticks = serializers.IntegerField()
    month = serializers.CharField(help_text="The calendar month, UTC: 2026-11.")
    month_used_micros = serializers.IntegerField(help_text="Booked in it, rounded up; what is held comes on top.")
    month_cap_micros = serializers.IntegerField(allow_null=True, help_text="The tenant's own spend cap; null: none.")
    holds = HoldOut(many=True)


class BalanceIn(StrictSerializer):
    """What a tenant sets about its money."""

    month_cap_micros = serializers.IntegerField(allow_null=True, help_text="Per calendar month, UTC; null: no cap.")


class LedgerIn(StrictSerializer):
    """Which lines."""

    lease = serializers.CharField(required=False, max_length=32)
    kind = serializers.ChoiceField(required=False, choices=LedgerEntry.Kind.choices)
    currency = serializers.ChoiceField(required=False, choices=sorted(CURRENCIES))
    since = serializers.DateTimeField(required=False, help_text="From this moment on, RFC 3339 with zone.")
    until = serializers.DateTimeField(required=False, help_text="Before this moment.")
    limit = serializers.CharField(required=False)
    cursor = serializers.CharField(required=False)


class LineOut(serializers.ModelSerializer[LedgerEntry]):
    """A line. ``ticks`` above zero raised the balance, below zero took from it; their sum is the balance."""

    currency = serializers.CharField(source="account.currency")
    lease = serializers.CharField(source="lease_id", allow_null=True)
    micros = serializers.SerializerMethodField(help_text="Ticks in whole µ, rounded down.")

    class Meta:
        model = LedgerEntry
        fields = ["id", "at", "kind", "currency", "ticks", "micros", "lease", "memo"]

    def get_micros(self, line: LedgerEntry) -> int:
        """Ticks in whole µ, rounded down."""
        return money.micros_floor(line.ticks)

    def to_representation(self, instance: LedgerEntry) -> dict[str, Any]:
        """A line that belongs to no lease says null, not an empty name."""
        shown: dict[str, Any] = super().to_representation(instance)
        return {**shown, "lease": shown["lease"] or None}


class Balance(APIView):
    """The balance."""

    scopes = {"GET": "billing:read", "PATCH": "billing:write"}

    @extend_schema(operation_id="balance", responses=BalanceOut)
    def get(self, request: Request) -> Response:
        """The tenant's balance in the currency of this site, what is held of it, and for which leases."""
        return Response(self._facts(request))

    @extend_schema(operation_id="set_month_cap", request=BalanceIn, responses=BalanceOut)
    def patch(self, request: Request) -> Response:
        """Set or lift the spend cap per calendar month (UTC), for owners, admins and billing members.

        Orders beyond it are refused with 409 `month_cap_reached`; running leases are warned, then ended in good order.
        """
        said = BalanceIn(data=request.data)
        said.is_valid(raise_exception=True)
        micros = said.validated_data["month_cap_micros"]
        set_month_cap(tenant=current_tenant(request), micros=micros, actor=Actor.of(request))
        return Response(self._facts(request))

    def _facts(self, request: Request) -> dict[str, Any]:
        shown = statements.overview(current_tenant(request))
        account = shown.account
        use = caps.month_use(account)
        facts = {
            "tenant": account.tenant_id,
            "currency": account.currency,
            "balance_micros": money.micros_floor(account.balance_ticks),
            "held_micros": money.micros_ceil(account.held_ticks),
            "available_micros": money.micros_floor(account.available_ticks),
            "balance_ticks": account.balance_ticks,
            "held_ticks": account.held_ticks,
            "available_ticks": account.available_ticks,
            "month": use.month,
            "month_used_micros": money.micros_ceil(use.booked_ticks),
            "month_cap_micros": account.month_cap_micros,
            "holds": [
                {"lease": hold.lease_id, "micros": money.micros_ceil(hold.ticks), "ticks": hold.ticks}
                for hold in shown.holds
            ],
        }
        data: dict[str, Any] = BalanceOut(facts).data
        return data


class Ledger(APIView):
    """The lines behind the balance."""

    scopes = {"GET": "billing:read"}
    pagination_class = Cursor
    cursor_by = "-id"

    @extend_schema(operation_id="list_ledger", parameters=[LedgerIn], responses=LineOut(many=True))
    def get(self, request: Request) -> Response:
        """The tenant's lines, newest first, for owners, admins and billing members; 403 `not_allowed` for others."""
        tenant = current_tenant(request)
        require_role(user=caller(request), tenant=tenant, roles=ROLES_THAT_PAY)
        said = LedgerIn(data=request.query_params.dict())
        said.is_valid(raise_exception=True)
        rows = LedgerEntry.objects.filter(account__tenant=tenant).select_related("account")
        page = Cursor()
        shown = page.paginate_queryset(_narrowed(rows, said.validated_data), request, self)
        return page.get_paginated_response(LineOut(shown, many=True).data)


def _narrowed(rows: QuerySet[LedgerEntry], said: dict[str, Any]) -> QuerySet[LedgerEntry]:
    """The rows that fit every filter that was given."""
    lookups = {
        "lease": "lease_id",
        "kind": "kind",
        "currency": "account__currency",
        "since": "at__gte",
        "until": "at__lt",
    }
    return rows.filter(**{lookups[name]: value for name, value in said.items() if name in lookups})
