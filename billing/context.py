"""What every page knows about money: the balance pill of the shell."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from django.conf import settings

from billing.models import Account
from portal.services import current_tenant

if TYPE_CHECKING:
    from django.http import HttpRequest


def balance(request: HttpRequest) -> dict[str, Any]:
    """``currency``, and for people who are signed in ``balance_ticks``: what is available to them, asked when used."""
    if not getattr(request, "user", None) or not request.user.is_authenticated:
        return {"currency": settings.CURRENCY}

    @cache
    def balance_ticks() -> int:  # templates call it; a page without the pill costs no query
        account = Account.objects.filter(tenant=current_tenant(request), currency=settings.CURRENCY).first()
        return account.available_ticks if account else 0

    return {"currency": settings.CURRENCY, "balance_ticks": balance_ticks}
