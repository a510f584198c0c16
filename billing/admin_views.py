"""The two things operators do with money in the admin, each in two steps: type it, then confirm what was understood."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _

from billing import money
from billing.forms import DEFAULT_FACTOR_TEXTS, PriceForm, TopUpForm, factor_text
from billing.models import Plan, PriceVersion, TopUp
from billing.prices import plan_amounts, set_price
from billing.top_ups import book_top_up
from portal.actor import Actor
from portal.currencies import CURRENCIES
from portal.errors import DomainError
from portal.formatting import money as money_text
from portal.formatting import price_per_hour
from portal.models import Tenant

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.contrib.admin import AdminSite
    from django.db.models import QuerySet
    from django.http import HttpRequest, HttpResponse


MAY_TOP_UP: Final = "billing.add_topup"
MAY_PRICE: Final = "billing.add_priceversion"


def site_currency() -> str:
    """The currency this site sells in."""
    return settings.CURRENCY


def top_up(request: HttpRequest, tenant_id: str, site: AdminSite) -> HttpResponse:
    """Book a payment for a tenant: form, then the amount as it was understood, then booked once."""
    if not request.user.has_perm(MAY_TOP_UP):
        raise PermissionDenied
    tenant = get_object_or_404(Tenant, pk=tenant_id)
    currency = request.POST.get("currency") or request.GET.get("currency") or site_currency()
    if currency not in CURRENCIES:
        raise Http404
    form = TopUpForm(request.POST if request.method == "POST" else None, currency=currency)
    facts: dict[str, Any] = {"title": _("Top up"), "tenant": tenant, "currency": currency, "form": form}
    if request.method == "POST" and form.is_valid():
        before = _booked(tenant, currency, form.cleaned_data["reference"])
        if "confirm" in request.POST:
            done = _book(request, form, tenant, before)
            if done is not None:
                return redirect("admin:billing_account_change", done.account_id)
        elif before is None or before.amount_micros == form.cleaned_data["amount"]:
            facts |= {"booked": before, "understood": money_text(form.cleaned_data["amount"], currency)}
            return _page(request, site, "admin/billing/top_up_confirm.html", facts)
        else:
            form.add_error("reference", _("A payment of another amount was booked under this reference before."))
    return _page(request, site, "admin/billing/top_up.html", facts)


def _booked(tenant: Tenant, currency: str, reference: str) -> TopUp | None:
    """The top-up that already has this reference."""
    text = " ".join(reference.split())
    return TopUp.objects.filter(account__tenant=tenant, account__currency=currency, reference=text).first()


def _book(request: HttpRequest, form: TopUpForm, tenant: Tenant, before: TopUp | None) -> TopUp | None:
    """Book and say so; None, with the refusal in the form, when the service refuses."""
    try:
        booked = book_top_up(
            tenant=tenant,
            amount_micros=form.cleaned_data["amount"],
            reference=form.cleaned_data["reference"],
            currency=form.currency,
            actor=Actor.of(request),
        )
    except DomainError as error:
        form.refuse(error)
        return None
    facts = {
        "amount": money_text(booked.amount_micros, form.currency),
        "name": tenant.name,
        "reference": booked.reference,
    }
    if before is not None:
        messages.info(request, _("%(reference)s was booked before: nothing was added.") % facts)
    else:
        messages.success(request, _("%(amount)s is on the balance of %(name)s (%(reference)s).") % facts)
    return booked


def new_price(request: HttpRequest, site: AdminSite) -> HttpResponse:
    """Make a price version: form, then what each plan will cost, then the version."""
    if not request.user.has_perm(MAY_PRICE):
        raise PermissionDenied
    form = PriceForm(request.POST) if request.method == "POST" else PriceForm(initial=_current(request))
    facts: dict[str, Any] = {"title": _("New price"), "form": form, "currency": site_currency()}
    if request.method == "POST" and form.is_valid():
        base, factors = form.cleaned_data["base_price"], form.factors_milli
        try:
            amounts = plan_amounts(base, factors)
            if "confirm" in request.POST:
                version = set_price(
                    gpu_model=form.cleaned_data["gpu_model"],
                    base_micros_per_hour=base,
                    factors_milli=factors,
                    actor=Actor.of(request),
                )
                messages.success(
                    request, _("%(sku)s has version %(number)s.") % {"sku": version.sku, "number": version.number}
                )
                return redirect("admin:billing_sku_changelist")
        except DomainError as error:
            form.refuse(error)
        else:
            facts |= {"base": price_per_hour(base, site_currency()), "plans": _plan_rows(amounts)}
            return _page(request, site, "admin/billing/new_price_confirm.html", facts)
    return _page(request, site, "admin/billing/new_price.html", facts)


def _plan_rows(amounts: dict[str, tuple[int, int]]) -> list[tuple[str, str, str]]:
    """``(plan, factor, price)`` to show."""
    return [
        (str(Plan(plan).label), factor_text(factor), price_per_hour(micros, site_currency()))
        for plan, (factor, micros) in amounts.items()
    ]


def _current(request: HttpRequest) -> dict[str, str]:
    """What the form starts with: the price of ``?gpu_model=`` as it stands, else the usual factors."""
    model = request.GET.get("gpu_model", "")
    start: dict[str, str] = {**DEFAULT_FACTOR_TEXTS, "gpu_model": model}
    newest = (
        PriceVersion.objects.filter(sku__gpu_model=model, sku__currency=site_currency()).order_by("-number").first()
    )
    if newest is not None:
        start["base_price"] = money.amount_text(newest.base_micros_per_hour, site_currency())
        start |= {price.plan: factor_text(price.factor_milli) for price in newest.plan_prices.all()}
    return start


def with_totals(response: HttpResponse, totals: Callable[[QuerySet[Any]], list[tuple[Any, str]]]) -> HttpResponse:
    """A change list with the sums of the rows that its filters and search leave, all pages together."""
    shown = getattr(response, "context_data", None)
    if shown and "cl" in shown:
        shown["totals"] = totals(shown["cl"].queryset)
    return response


def _page(request: HttpRequest, site: AdminSite, template: str, facts: dict[str, Any]) -> HttpResponse:
    return render(request, template, {**site.each_context(request), **facts, "back": reverse("admin:index")})
