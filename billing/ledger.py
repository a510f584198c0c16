"""The books: a tenant's account, lines on it, and money set aside for leases.

Locking: everything here changes one account, and takes that account's row first, then the rows below it. The sums on
the account move by conditional UPDATE in the transaction of their cause; nothing is read, added up and written back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import BigIntegerField, ExpressionWrapper, F
from django.utils import timezone

from billing import caps, money
from billing.models import Account, Hold, LedgerEntry
from portal.currencies import CURRENCIES
from portal.errors import DomainError, InsufficientFunds, InvalidInput, NotFound
from portal.ready import Ready

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from portal.models import Tenant

# Said to be 64 bits wide: Django takes a difference for 32, and then knows that nothing is above 2**31.
_FREE = ExpressionWrapper(F("balance_ticks") - F("held_ticks"), output_field=BigIntegerField())


class MonthCapReached(DomainError):
    """The tenant's own spend cap of the month does not leave enough; the numbers are in ``extra``."""

    code = "month_cap_reached"


def account_for(tenant: Tenant, currency: str | None = None) -> Account:
    """The tenant's account in this currency (the site's when none is given), made when first asked for."""
    code = currency or settings.CURRENCY
    if code not in CURRENCIES:
        raise InvalidInput.field("currency", f"{code!r} is not a currency in use; write an ISO 4217 code such as USD.")
    found: list[Account] = _ACCOUNT.rows(tenant=tenant.pk, currency=code)
    return found[0] if found else Account.objects.get_or_create(tenant=tenant, currency=code)[0]


def _account(tenant: str, currency: str) -> QuerySet[Account]:
    return Account.objects.filter(tenant=tenant, currency=currency)


_ACCOUNT: Final = Ready(_account, tenant="?tenant", currency="???")


@transaction.atomic
def post(*, account: Account, kind: str, ticks: int, source: str, lease_id: str = "", memo: str = "") -> LedgerEntry:
    """One line of money; the balance moves with it. ``ticks`` above zero raise the balance, zero is not a line.

    ``source`` names the cause (``segment:17``): a second call returns the first line. Raises ``source_conflict``
    when that line says something else, InvalidInput when the line or the balance would leave the range of the books.
    """
    if not ticks:
        raise InvalidInput.field("ticks", "A line of the ledger is not zero.")
    booked = LedgerEntry.objects.filter(source=source).first()
    if booked is None:
        try:
            with transaction.atomic():  # a twin that commits first makes the INSERT fail, and takes back the UPDATE
                _move_balance(account, ticks)
                return LedgerEntry.objects.create(
                    account=account, kind=kind, ticks=ticks, source=source, lease_id=lease_id, memo=memo
                )
        except IntegrityError:
            booked = LedgerEntry.objects.filter(source=source).first()
            if booked is None:
                raise
    if (booked.account_id, booked.kind, booked.ticks, booked.lease_id) != (account.pk, kind, ticks, lease_id):
        raise DomainError(f"{source} was booked before with other content.", code="source_conflict")
    return booked


def _move_balance(account: Account, ticks: int) -> None:
    """Add to the balance unless that leaves ``±MAX_TICKS``; SQLite would turn a sum beyond 64 bits into a float."""
    within = Account.objects.filter(
        pk=account.pk,
        balance_ticks__lte=money.MAX_TICKS - max(0, ticks),
        balance_ticks__gte=-money.MAX_TICKS - min(0, ticks),
    )
    if abs(ticks) > money.MAX_TICKS or not within.update(balance_ticks=F("balance_ticks") + ticks):
        raise InvalidInput.field("amount", f"No account holds more than {money.MAX_UNITS} {account.currency}.")


def place_hold(*, tenant: Tenant, currency: str, lease_id: str, ticks: int) -> Hold:
    """Set ``ticks`` aside for a lease, if balance less holds covers them; else InsufficientFunds (402).

    Beyond the tenant's spend cap of the month: MonthCapReached (409). A lease has at most one open hold: a second one
    raises ``hold_conflict``.
    """
    _check_hold(ticks)
    account = account_for(tenant, currency)
    try:
        with transaction.atomic():  # what is held goes back with a refusal
            return _held(account, lease_id, ticks)
    except IntegrityError as error:
        raise DomainError(f"{lease_id} already has money set aside.", code="hold_conflict") from error


def _held(account: Account, lease_id: str, ticks: int) -> Hold:
    if not _raise_held(account.pk, ticks):
        account.refresh_from_db()
        raise _too_little(account, ticks)
    if account.month_cap_micros is not None:
        account.refresh_from_db()  # locked by the UPDATE above: no other order of this tenant is between
        _check_cap(account, ticks)
    return Hold.objects.create(account=account, lease_id=lease_id, ticks=ticks)


@transaction.atomic
def set_hold(*, lease_id: str, ticks: int) -> bool:
    """Make the open hold of a lease this large. False, and nothing changed, if balance or month's cap do not allow it.

    Lowering always works. Raises NotFound when the lease has no open hold (any more).
    """
    _check_hold(ticks)
    hold = _locked_hold(lease_id)
    if hold is None:
        raise NotFound(f"{lease_id} has no money set aside.")
    if ticks > hold.ticks:
        more = ticks - hold.ticks
        room = caps.room_ticks(hold.account)
        if (room is not None and room < more) or not _raise_held(hold.account_id, more):
            return False
    elif ticks < hold.ticks:
        _lower_held(hold.account_id, hold.ticks - ticks)
    hold.ticks = ticks
    hold.save(update_fields=["ticks"])
    return True


@transaction.atomic
def lower_hold(*, lease_id: str, ticks: int) -> None:
    """Take ``ticks`` that have been booked out of what is set aside for a lease, as far as there is so much."""
    hold = _locked_hold(lease_id)
    taken = 0 if hold is None else min(hold.ticks, max(0, ticks))
    if hold is None or not taken:
        return
    _lower_held(hold.account_id, taken)
    hold.ticks -= taken
    hold.save(update_fields=["ticks"])


@transaction.atomic
def release_hold(*, lease_id: str) -> None:
    """Give back what is set aside for a lease. Without an open hold this does nothing."""
    hold = _locked_hold(lease_id)
    if hold is None:
        return
    _lower_held(hold.account_id, hold.ticks)
    hold.released_at = timezone.now()
    hold.save(update_fields=["released_at"])


def _locked_hold(lease_id: str) -> Hold | None:
    """The open hold, read again under the lock of its account: the amount seen is the one that will be changed."""
    accounts: list[Account] = _ACCOUNT_OF_HOLD.rows(lease=lease_id)
    holds: list[Hold] = _OPEN_HOLD.rows(lease=lease_id) if accounts else []
    if not holds:
        return None
    holds[0].account = accounts[0]
    return holds[0]


def _account_of_hold(lease: str) -> QuerySet[Account]:
    holding = Account.objects.filter(holds__lease_id=lease, holds__released_at__isnull=True)
    return holding.select_for_update(of=("self",))


_ACCOUNT_OF_HOLD: Final = Ready(_account_of_hold, lease="?lease")
_OPEN_HOLD: Final = Ready(lambda lease: Hold.objects.open().filter(lease_id=lease), lease="?lease")


def _check_hold(ticks: int) -> None:
    if ticks < 0:
        raise InvalidInput.field("ticks", "A hold is never negative.")


def _raise_held(account_id: int, ticks: int) -> bool:
    covered = Account.objects.filter(pk=account_id).annotate(free=_FREE).filter(free__gte=ticks)
    return ticks <= money.MAX_TICKS and bool(covered.update(held_ticks=F("held_ticks") + ticks))


def _lower_held(account_id: int, ticks: int) -> None:
    Account.objects.filter(pk=account_id).update(held_ticks=F("held_ticks") - ticks)


def _check_cap(account: Account, ticks: int) -> None:
    """``ticks`` are among what is held already."""
    use = caps.month_use(account)
    if use.room_ticks is None or use.room_ticks >= 0:
        return
    room, needed = money.micros_floor(max(0, use.room_ticks + ticks)), money.micros_ceil(ticks)
    raise MonthCapReached(
        f"This order sets {money.amount_text(needed, account.currency)} {account.currency} aside, and the spend cap of "
        f"{use.month} (UTC) leaves {money.amount_text(room, account.currency)} {account.currency}.",
        extra={
            "needed_micros": needed,
            "room_micros": room,
            "cap_micros": account.month_cap_micros,
            "used_micros": money.micros_ceil(use.booked_ticks),
            "held_micros": money.micros_ceil(use.held_ticks - ticks),
            "month": use.month,
            "currency": account.currency,
        },
    )


def _too_little(account: Account, ticks: int) -> InsufficientFunds:
    needed, available = money.micros_ceil(ticks), money.micros_floor(account.available_ticks)
    return InsufficientFunds(
        f"This order sets {money.amount_text(needed, account.currency)} {account.currency} aside, and "
        f"{money.amount_text(available, account.currency)} {account.currency} is available. Top up the balance first.",
        extra={"needed_micros": needed, "available_micros": available, "currency": account.currency},
    )
