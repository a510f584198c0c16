"""The operators' pages of money: prices, accounts, lines, top-ups. Nothing is edited; two buttons book and price."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import BigIntegerField, F, OuterRef, Subquery, Sum
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from billing import admin_views
from billing.models import Account, Hold, LedgerEntry, PlanPrice, PriceVersion, Sku, TopUp
from portal.admin_base import ReadOnly, ReadOnlyInline
from portal.formatting import money, price_per_hour, ticks_money
from portal.models import Tenant
from portal.tenant_admin import TenantAdmin

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern


def _ticks(amount: int | None, currency: str) -> str:
    return ticks_money(amount or 0, currency, extra=2)


@admin.register(Sku)
class SkuAdmin(ReadOnly[Sku]):
    """What has a price, and its price now. The button "New price" makes a version."""

    list_display = ["gpu_model", "currency", "base", "on_demand", "reserved", "spot", "since", "new_price"]
    list_filter = ["currency"]
    search_fields = ["gpu_model", "code"]
    fields = ["code", "gpu_model", "unit", "currency", "created_at"]
    change_list_template = "admin/billing/sku/change_list.html"
    change_form_template = "admin/billing/sku/change_form.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Sku]:
        """With the newest version and its prices: one query for any number of rows."""
        newest = PriceVersion.objects.filter(sku=OuterRef("pk")).order_by("-number")
        rows = (
            super()
            .get_queryset(request)
            .annotate(
                base_micros=Subquery(newest.values("base_micros_per_hour")[:1]),
                priced_at=Subquery(newest.values("created_at")[:1]),
            )
        )
        for plan in ("on_demand", "reserved", "spot"):
            price = PlanPrice.objects.filter(version__sku=OuterRef("pk"), plan=plan).order_by("-version__number")
            rows = rows.annotate(**{f"{plan}_micros": Subquery(price.values("micros_per_hour")[:1])})
        return rows

    def get_urls(self) -> list[URLPattern]:
        """The new-price form beside Django's own pages."""
        view = self.admin_site.admin_view(self._new_price)
        return [path("new-price/", view, name="billing_new_price"), *super().get_urls()]

    def _new_price(self, request: HttpRequest) -> HttpResponse:
        return admin_views.new_price(request, self.admin_site)

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """The link of a row only for those who may follow it."""
        return [
            name for name in self.list_display if name != "new_price" or request.user.has_perm(admin_views.MAY_PRICE)
        ]

    @admin.display(description=_("base / h"))
    def base(self, sku: Any) -> str:
        """The base price."""
        return _price(sku.base_micros, sku.currency)

    @admin.display(description=_("on demand / h"))
    def on_demand(self, sku: Any) -> str:
        """What on demand costs."""
        return _price(sku.on_demand_micros, sku.currency)

    @admin.display(description=_("reserved / h"))
    def reserved(self, sku: Any) -> str:
        """What a reservation costs."""
        return _price(sku.reserved_micros, sku.currency)

    @admin.display(description=_("spot / h"))
    def spot(self, sku: Any) -> str:
        """What spot costs."""
        return _price(sku.spot_micros, sku.currency)

    @admin.display(description=_("since"))
    def since(self, sku: Any) -> Any:
        """Since when the price stands."""
        return sku.priced_at

    @admin.display(description="")
    def new_price(self, sku: Sku) -> str:
        """The link of a row."""
        url = reverse("admin:billing_new_price", query={"gpu_model": sku.gpu_model})
        return format_html('<a href="{}">{}</a>', url, _("New price"))


def _price(micros: int | None, currency: str) -> str:
    return "-" if micros is None else price_per_hour(micros, currency)


class PlanPriceInline(ReadOnlyInline):
    """Prices of a version."""

    model = PlanPrice
    fields = ["plan", "factor_milli", "micros_per_hour"]
    readonly_fields = ["plan", "factor_milli", "micros_per_hour"]


@admin.register(PriceVersion)
class PriceVersionAdmin(ReadOnly[PriceVersion]):
    """Every price there ever was."""

    list_display = ["sku", "number", "base", "created_at", "created_by"]
    list_filter = ["sku__currency"]
    search_fields = ["sku__gpu_model"]
    list_select_related = ["sku", "created_by"]
    inlines = [PlanPriceInline]
    ordering = ["-created_at", "-pk"]

    @admin.display(description=_("base / h"))
    def base(self, version: PriceVersion) -> str:
        """The base price."""
        return price_per_hour(version.base_micros_per_hour, version.sku.currency)


@admin.register(Account)
class AccountAdmin(ReadOnly[Account]):
    """Balances by tenant and currency, with a button to top up."""

    list_display = ["tenant", "currency", "balance", "held", "available", "top_up"]
    list_filter = ["currency"]
    search_fields = ["tenant__name", "tenant__id", "tenant__memberships__user__email"]
    list_select_related = ["tenant"]
    fields = ["tenant", "currency", "balance", "held", "available", "balance_ticks", "held_ticks"]
    ordering = ["tenant__name", "currency"]
    change_list_template = "admin/billing/totals_change_list.html"
    change_form_template = "admin/billing/account/change_form.html"

    def get_readonly_fields(self, request: HttpRequest, obj: Account | None = None) -> list[str]:
        """All of them."""
        return ["tenant", "currency", "balance", "held", "available", "balance_ticks", "held_ticks"]

    def get_urls(self) -> list[URLPattern]:
        """The top-up form beside Django's own pages."""
        view = self.admin_site.admin_view(self._top_up)
        return [path("top-up/<str:tenant_id>/", view, name="billing_top_up"), *super().get_urls()]

    def _top_up(self, request: HttpRequest, tenant_id: str) -> HttpResponse:
        return admin_views.top_up(request, tenant_id, self.admin_site)

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """The link of a row only for those who may follow it."""
        return [name for name in self.list_display if name != "top_up" or request.user.has_perm(admin_views.MAY_TOP_UP)]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list with its sums, one per currency."""
        return admin_views.with_totals(super().changelist_view(request, extra_context), _account_totals)

    @admin.display(description=_("balance"), ordering="balance_ticks")
    def balance(self, account: Account) -> str:
        """What there is."""
        return _ticks(account.balance_ticks, account.currency)

    @admin.display(description=_("held"), ordering="held_ticks")
    def held(self, account: Account) -> str:
        """What is set aside."""
        return _ticks(account.held_ticks, account.currency)

    @admin.display(description=_("available"))
    def available(self, account: Account) -> str:
        """What a new order may set aside."""
        return _ticks(account.available_ticks, account.currency)

    @admin.display(description="")
    def top_up(self, account: Account) -> str:
        """The link of a row."""
        url = reverse("admin:billing_top_up", args=[account.tenant_id], query={"currency": account.currency})
        return format_html('<a href="{}">{}</a>', url, _("Top up"))


@admin.register(LedgerEntry)
class LedgerEntryAdmin(ReadOnly[LedgerEntry]):
    """Every line of money."""

    list_display = ["at", "tenant", "kind", "amount", "lease_id", "memo", "source"]
    list_filter = ["kind", "account__currency"]
    search_fields = ["=source", "=lease_id", "memo", "=account__tenant__id", "account__tenant__name"]
    list_select_related = ["account__tenant"]
    date_hierarchy = "at"
    show_full_result_count = False
    change_list_template = "admin/billing/totals_change_list.html"

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list with the sums of what is filtered, by currency and kind."""
        return admin_views.with_totals(super().changelist_view(request, extra_context), _line_totals)

    @admin.display(description=_("tenant"))
    def tenant(self, line: LedgerEntry) -> Tenant:
        """Whose money."""
        return line.account.tenant

    @admin.display(description=_("amount"), ordering="ticks")
    def amount(self, line: LedgerEntry) -> str:
        """How much."""
        return _ticks(line.ticks, line.account.currency)


@admin.register(Hold)
class HoldAdmin(ReadOnly[Hold]):
    """What is or was set aside for leases."""

    list_display = ["lease_id", "tenant", "amount", "created_at", "released_at"]
    list_filter = [("released_at", admin.EmptyFieldListFilter), "account__currency"]
    search_fields = ["=lease_id", "=account__tenant__id", "account__tenant__name"]
    list_select_related = ["account__tenant"]
    ordering = ["-pk"]
    show_full_result_count = False
    change_list_template = "admin/billing/totals_change_list.html"

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list with the sums of what is filtered and open."""
        return admin_views.with_totals(super().changelist_view(request, extra_context), _hold_totals)

    @admin.display(description=_("tenant"))
    def tenant(self, hold: Hold) -> Tenant:
        """Whose money."""
        return hold.account.tenant

    @admin.display(description=_("amount"), ordering="ticks")
    def amount(self, hold: Hold) -> str:
        """How much."""
        return _ticks(hold.ticks, hold.account.currency)


@admin.register(TopUp)
class TopUpAdmin(ReadOnly[TopUp]):
    """Money that came in."""

    list_display = ["at", "tenant", "amount", "reference", "provider", "booked_by"]
    list_filter = ["provider", "account__currency"]
    search_fields = ["=id", "reference", "=account__tenant__id", "account__tenant__name"]
    list_select_related = ["account__tenant", "booked_by"]
    date_hierarchy = "at"
    change_list_template = "admin/billing/totals_change_list.html"

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list with the sums of what is filtered."""
        return admin_views.with_totals(super().changelist_view(request, extra_context), _top_up_totals)

    @admin.display(description=_("tenant"))
    def tenant(self, top_up: TopUp) -> Tenant:
        """Whose money."""
        return top_up.account.tenant

    @admin.display(description=_("amount"), ordering="amount_micros")
    def amount(self, top_up: TopUp) -> str:
        """How much."""
        return money(top_up.amount_micros, top_up.account.currency)


def _account_totals(rows: QuerySet[Any]) -> list[tuple[Any, str]]:
    sums = rows.order_by("currency").values("currency").annotate(total=Sum("balance_ticks"), held=Sum("held_ticks"))
    totals: list[tuple[Any, str]] = []
    for row in sums:
        totals.append((_("balances"), _ticks(row["total"], row["currency"])))
        totals.append((_("held"), _ticks(row["held"], row["currency"])))
    return totals


def _line_totals(rows: QuerySet[Any]) -> list[tuple[Any, str]]:
    names = dict(LedgerEntry.Kind.choices)
    sums = rows.order_by("account__currency", "kind").values("account__currency", "kind").annotate(total=Sum("ticks"))
    return [(names[row["kind"]], _ticks(row["total"], row["account__currency"])) for row in sums]


def _hold_totals(rows: QuerySet[Any]) -> list[tuple[Any, str]]:
    still = rows.filter(released_at__isnull=True).order_by("account__currency")
    sums = still.values("account__currency").annotate(total=Sum("ticks"))
    return [(_("open holds"), _ticks(row["total"], row["account__currency"])) for row in sums]


def _top_up_totals(rows: QuerySet[Any]) -> list[tuple[Any, str]]:
    sums = rows.order_by("account__currency").values("account__currency").annotate(total=Sum("amount_micros"))
    return [(_("top-ups"), money(row["total"], row["account__currency"])) for row in sums]


# The tenants' page belongs to the app below, which knows no money: it is registered again with what billing adds.
admin.site.unregister(Tenant)


@admin.register(Tenant)
class TenantWithMoneyAdmin(TenantAdmin):
    """Who rents and pays, with the available balance in the site's currency and a button to top up."""

    list_display = [*TenantAdmin.list_display, "available"]
    change_form_template = "admin/billing/tenant_change_form.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Tenant]:
        """With the balance: one query for any number of rows."""
        account = Account.objects.filter(tenant=OuterRef("pk"), currency=admin_views.site_currency())
        free = account.annotate(free=F("balance_ticks") - F("held_ticks")).values("free")
        ticks = Subquery(free, output_field=BigIntegerField())
        return super().get_queryset(request).annotate(available_ticks=ticks)

    @admin.display(description=_("available"), ordering="available_ticks")
    def available(self, tenant: Any) -> str:
        """What a new order may set aside."""
        return _ticks(tenant.available_ticks, admin_views.site_currency())
