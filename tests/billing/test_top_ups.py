"""A payment is booked once, whoever presses how often."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from billing import money
from billing.models import LedgerEntry, TopUp
from billing.services import account_for, book_top_up
from portal.errors import DomainError, InvalidInput
from portal.models import AuditEvent
from tests import make

if TYPE_CHECKING:
    from portal.actor import Actor
    from portal.models import Tenant

pytestmark = pytest.mark.usefixtures("sound_books")


def test_a_top_up_raises_the_balance_and_is_written_down(tenant: Tenant, actor: Actor) -> None:
    top_up = book_top_up(tenant=tenant, amount_micros=1_500_500_000, reference="transfer 7", actor=actor)
    assert account_for(tenant).balance_ticks == 1_500_500_000 * 3600
    line = LedgerEntry.objects.get()
    assert (line.kind, line.source, line.memo) == ("top_up", f"top_up:{top_up.pk}", "transfer 7")
    row = AuditEvent.objects.get(action="top_up.booked")
    assert (row.actor, row.tenant, row.object_id) == (actor.user, tenant, top_up.pk)


def test_the_same_reference_again_is_the_same_top_up(tenant: Tenant, actor: Actor) -> None:
    first = book_top_up(tenant=tenant, amount_micros=5_000_000, reference="transfer 7", actor=actor)
    again = book_top_up(tenant=tenant, amount_micros=5_000_000, reference="  transfer   7 ", actor=actor)
    assert again.pk == first.pk
    assert account_for(tenant).balance_ticks == 5_000_000 * 3600


def test_the_same_reference_with_another_amount_is_refused(tenant: Tenant, actor: Actor) -> None:
    book_top_up(tenant=tenant, amount_micros=5_000_000, reference="transfer 7", actor=actor)
    with pytest.raises(DomainError, match=r"5\.00 USD was booked") as refused:
        book_top_up(tenant=tenant, amount_micros=50_000_000, reference="transfer 7", actor=actor)
    assert (refused.value.status, refused.value.code) == (409, "reference_used")
    assert account_for(tenant).balance_ticks == 5_000_000 * 3600


def test_two_tenants_may_have_the_same_reference(tenant: Tenant, actor: Actor) -> None:
    for payer in (tenant, make.make_tenant()):
        book_top_up(tenant=payer, amount_micros=5_000_000, reference="cash", actor=actor)
    assert TopUp.objects.count() == 2


@pytest.mark.parametrize("amount", [0, -1, money.MAX_MICROS + 1, 2**63, 2**64])
def test_an_amount_out_of_range_is_refused_by_name(tenant: Tenant, actor: Actor, amount: int) -> None:
    with pytest.raises(InvalidInput) as refused:
        book_top_up(tenant=tenant, amount_micros=amount, reference="transfer 7", actor=actor)
    assert list(refused.value.errors) == ["amount"]


def test_a_balance_is_never_topped_up_beyond_the_books(tenant: Tenant, actor: Actor) -> None:
    book_top_up(tenant=tenant, amount_micros=money.MAX_MICROS, reference="transfer 7", actor=actor)
    with pytest.raises(InvalidInput) as refused:
        book_top_up(tenant=tenant, amount_micros=1, reference="transfer 8", actor=actor)
    assert list(refused.value.errors) == ["amount"]
    assert TopUp.objects.count() == 1


@pytest.mark.parametrize("reference", ["", "   ", "x" * 121, "a\x00b", "a\u202eb"])
def test_a_reference_nobody_could_find_again_is_refused_by_name(tenant: Tenant, actor: Actor, reference: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        book_top_up(tenant=tenant, amount_micros=1, reference=reference, actor=actor)
    assert list(refused.value.errors) == ["reference"]
