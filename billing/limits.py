"""A tenant limits itself: the spend cap per month."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import transaction

from billing import money
from billing.ledger import account_for
from billing.models import Account
from portal.errors import InvalidInput
from portal.models import ROLES_THAT_PAY
from portal.services import audit, require_role

if TYPE_CHECKING:
    from portal.actor import Actor
    from portal.models import Tenant

FIELD = "month_cap_micros"


@transaction.atomic
def set_month_cap(*, tenant: Tenant, micros: int | None, actor: Actor, currency: str | None = None) -> Account:
    """Spend at most ``micros`` in a calendar month; None lifts the cap. For owners, admins and billing members.

    A cap below what is spent and held already is taken: new orders are refused, running leases end in good order.
    Raises InvalidInput naming ``month_cap_micros``, NotAllowed.
    """
    if actor.user is not None:
        require_role(user=actor.user, tenant=tenant, roles=ROLES_THAT_PAY)
    if micros is not None and not 1 <= micros <= money.MAX_MICROS:
        raise InvalidInput.field(FIELD, f"{micros} is out of range; 1 to {money.MAX_MICROS}, or null for no cap.")
    account = Account.objects.select_for_update().get(pk=account_for(tenant, currency).pk)
    before = account.month_cap_micros
    if micros != before:
        account.month_cap_micros = micros
        account.save(update_fields=["month_cap_micros"])
        data = {"currency": account.currency, "before_micros": before, "cap_micros": micros}
        audit(actor=actor, action="month_cap.set", obj=account, tenant=tenant, data=data)
    return account
