"""The billing page of renters: what there is, what is held and for what, what was spent, every line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from billing import caps, charts, statements
from billing.forms import MonthCapForm
from billing.limits import set_month_cap
from billing.models import LedgerEntry
from portal.actor import Actor
from portal.errors import DomainError, NotAllowed
from portal.models import ROLES_THAT_PAY, Membership
from portal.services import current_tenant

if TYPE_CHECKING:
    from billing.models import Account

DAYS: Final = 30
LINES: Final = 50
MAX_DIGITS: Final = 18  # of a line's number; more is no number of ours


@login_required
@require_safe
def balance(request: HttpRequest) -> HttpResponse:
    """Everybody of a tenant sees the balance; the lines are for those who pay. ``?before=`` pages through them."""
    return _page(request)


@login_required
@require_POST
def month_cap(request: HttpRequest) -> HttpResponse:
    """Set or lift the spend cap of the month; a refusal is shown at the form."""
    tenant = current_tenant(request)
    form = MonthCapForm(request.POST, currency=settings.CURRENCY)
    if form.is_valid():
        try:
            set_month_cap(tenant=tenant, micros=form.cleaned_data["cap"], actor=Actor.of(request))
        except NotAllowed as error:
            messages.error(request, error.detail)
            return redirect("balance")
        except DomainError as error:
            form.refuse(error)
        else:
            set_ = form.cleaned_data["cap"] is not None
            messages.success(request, _("Spend cap set.") if set_ else _("Spend cap lifted."))
            return redirect(f"{reverse('balance')}#cap")
    return _page(request, cap_form=form, status=400)


def _page(request: HttpRequest, cap_form: MonthCapForm | None = None, status: int = 200) -> HttpResponse:
    tenant = current_tenant(request)
    overview = statements.overview(tenant)
    facts: dict[str, Any] = {"tenant": tenant, "account": overview.account, "holds": overview.holds, "days": DAYS}
    facts["balance_ticks"] = overview.account.available_ticks  # the pill of the shell needs no second query
    facts["pays"] = Membership.objects.filter(tenant=tenant, user_id=request.user.pk, role__in=ROLES_THAT_PAY).exists()
    facts["month"] = caps.month_use(overview.account)
    if facts["pays"]:
        facts["cap_form"] = cap_form or MonthCapForm.of(overview.account)
        facts |= _lines(overview.account, request.GET.get("before", ""))
        facts |= _spend(overview.account)
    return render(request, "billing/balance.html", facts, status=status)


def _lines(account: Account, before: str) -> dict[str, Any]:
    if before and not (before.isascii() and before.isdigit() and len(before) <= MAX_DIGITS):
        raise Http404
    rows = LedgerEntry.objects.filter(account_id=account.pk).order_by("-pk")
    shown = list((rows.filter(pk__lt=int(before)) if before else rows)[: LINES + 1])
    older = shown[LINES - 1].pk if len(shown) > LINES else None
    return {"lines": shown[:LINES], "older": older, "paged": bool(before)}


def _spend(account: Account) -> dict[str, Any]:
    spend = statements.daily_spend(account, days=DAYS, today=timezone.localdate())
    bars, scale = charts.bars(spend, account.currency)
    return {"bars": bars, "scale": scale, "spent_ticks": sum(ticks for _, ticks in spend), "chart": charts}
