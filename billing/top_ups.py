"""Money that comes in. The ``manual`` provider: an operator books what arrived by bank transfer or in cash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django.conf import settings
from django.db import IntegrityError, transaction

from billing import money
from billing.ledger import account_for, post
from billing.models import LedgerEntry, TopUp
from portal.errors import DomainError, InvalidInput
from portal.services import audit

if TYPE_CHECKING:
    from billing.models import Account
    from portal.actor import Actor
    from portal.models import Tenant


REFERENCE_LENGTH: Final = 120  # of TopUp.reference


@transaction.atomic
def book_top_up(
    *, tenant: Tenant, amount_micros: int, reference: str, actor: Actor, currency: str | None = None
) -> TopUp:
    """Book a payment once. The same reference and amount again is the same payment: the first top-up is returned.

    Raises InvalidInput naming ``amount`` or ``reference``; ``reference_used`` when another amount was booked before.
    """
    text = check_reference(reference)
    code = currency or settings.CURRENCY
    if not 0 < amount_micros <= money.MAX_MICROS:
        raise InvalidInput.field("amount", f"An amount is above 0 and at most {money.MAX_UNITS} {code}.")
    account = account_for(tenant, code)
    booked = find_top_up(account, text)
    if booked is None:
        try:
            with transaction.atomic():  # the unique key decides between two operators, not the look before
                return _book(account, amount_micros, text, actor)
        except IntegrityError:
            booked = find_top_up(account, text)
            if booked is None:
                raise
    if booked.amount_micros != amount_micros:
        was = f"{money.amount_text(booked.amount_micros, code)} {code}"
        raise DomainError(
            f"{was} was booked under the reference {text} before. One payment has one reference.", code="reference_used"
        )
    return booked


def check_reference(reference: str) -> str:
    """A reference as it is stored: blanks folded. InvalidInput when it is empty, too long or not printable."""
    text = " ".join(reference.split())
    if not text or len(text) > REFERENCE_LENGTH or not text.isprintable():
        raise InvalidInput.field(
            "reference", f"Write what the payment can be found by, 1 to {REFERENCE_LENGTH} characters."
        )
    return text


def find_top_up(account: Account, reference: str) -> TopUp | None:
    """The top-up an operator booked under this reference."""
    return account.top_ups.filter(provider=TopUp.Provider.MANUAL, reference=reference).first()


def _book(account: Account, amount_micros: int, reference: str, actor: Actor) -> TopUp:
    top_up = TopUp.objects.create(
        account=account, amount_micros=amount_micros, reference=reference, booked_by=actor.user
    )
    post(
        account=account,
        kind=LedgerEntry.Kind.TOP_UP,
        ticks=money.from_micros(amount_micros),
        source=f"top_up:{top_up.pk}",
        memo=reference,
    )
    facts = {"amount_micros": amount_micros, "currency": account.currency, "reference": reference}
    audit(actor=actor, action="top_up.booked", obj=top_up, tenant=account.tenant, data=facts)
    return top_up
