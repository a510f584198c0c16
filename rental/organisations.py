"""What leases and money say when an organisation is deleted. Connected in rental/apps.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.dispatch import receiver
from django.utils.translation import gettext as _

from billing.models import Account
from portal.errors import DomainError, InvalidInput
from portal.signals import tenant_closing
from rental.models import Lease
from rental.people import STILL_GOING

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from portal.models import Tenant

NAMED: Final = 5  # leases that a refusal names


def going(tenant: Tenant) -> QuerySet[Lease]:
    """Leases of the tenant that run, wait or start, oldest first."""
    return Lease.objects.filter(tenant=tenant, state__in=STILL_GOING).order_by("requested_at", "pk")


def balances(tenant: Tenant) -> list[Account]:
    """Its accounts with money or debt on them."""
    return list(Account.objects.filter(tenant=tenant).exclude(balance_ticks=0).select_related("tenant").order_by("pk"))


@receiver(tenant_closing, dispatch_uid="rental.refuse_to_close")
def refuse_to_close(*, tenant: Tenant, give_up_balance: bool, **_signal: Any) -> None:
    """409 ``leases_running`` names what goes on; InvalidInput ``give_up_balance`` while money was not given up.

    No lock: a lease ordered at this very moment has nobody, and the sweep of such leases stops it.
    """
    found = list(going(tenant)[: NAMED + 1])
    if found:
        names = ", ".join(lease.name or lease.pk for lease in found[:NAMED]) + (" …" if len(found) > NAMED else "")
        raise DomainError(_("Stop these leases first: %(names)s.") % {"names": names}, code="leases_running")
    if not give_up_balance and any(account.balance_ticks > 0 for account in balances(tenant)):
        raise InvalidInput.field("give_up_balance", _("Confirm this, or use the balance up first."))
