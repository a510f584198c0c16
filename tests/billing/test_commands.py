"""Money from the operator's command line."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

import pytest
from django.core.management import CommandError, call_command
from django.db.models import F

from billing import books
from billing.models import Account, LedgerEntry, PriceVersion, TopUp
from billing.services import current_prices, release_hold
from tests import make

if TYPE_CHECKING:
    from portal.models import Tenant, User


def run(*arguments: str) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out, stderr=StringIO())
    return out.getvalue()


@pytest.mark.usefixtures("sound_books")
def test_a_top_up_by_address_reaches_the_personal_tenant_once(user: User, tenant: Tenant) -> None:
    for _ in range(2):
        said = run("top_up", user.email.upper(), "1500.50", "--reference", "transfer 7")
        assert said.startswith("tu-")
        assert f"1500.50 USD for {tenant} ({tenant.pk})" in said
    assert TopUp.objects.get().amount_micros == 1_500_500_000


@pytest.mark.usefixtures("sound_books")
def test_a_top_up_by_tenant_names_the_operator_who_booked(tenant: Tenant, operator: User) -> None:
    run("top_up", tenant.pk, "5", "--reference", "transfer 7", "--as", operator.email)
    assert TopUp.objects.get().booked_by == operator


@pytest.mark.usefixtures("sound_books")
@pytest.mark.parametrize("amount", ["1,5", "1.500,00", "9.999,99", "1 000", "1.500", "-5", "0", "3000000000"])
def test_an_amount_that_could_be_misread_is_refused_and_nothing_is_booked(tenant: Tenant, amount: str) -> None:
    with pytest.raises(CommandError, match="amount"):
        run("top_up", tenant.pk, "--reference", "transfer 7", "--", amount)
    assert not TopUp.objects.exists()


@pytest.mark.usefixtures("sound_books")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["tn-unknown", "5"], "no tenant"),
        (["nobody@example.test", "5"], "no tenant"),
        (["maya@example.test", "5", "--as", "maya@example.test"], "not an active operator"),
        (["maya@example.test", "5", "--currency", "XXX"], "currency"),
    ],
)
def test_who_and_what_is_unknown_is_said(user: User, arguments: list[str], sentence: str) -> None:
    with pytest.raises(CommandError, match=sentence):
        run("top_up", *arguments, "--reference", "transfer 7")


@pytest.mark.usefixtures("sound_books")
def test_a_price_is_set_from_the_command_line() -> None:
    said = run("set_price", make.H100, "2.49", "--spot", "0.25")
    assert "version 1" in said
    quotes = current_prices()[make.H100]
    assert (quotes["on_demand"].micros_per_hour, quotes["spot"].micros_per_hour) == (3_735_000, 622_500)


@pytest.mark.usefixtures("sound_books")
@pytest.mark.parametrize(
    "arguments", [["2,49"], ["0"], ["1e3"], ["2.4900001"], ["2.49", "--spot", "0,3"], ["2.49", "--spot", "0.0001"]]
)
def test_a_price_that_could_be_misread_is_refused(arguments: list[str]) -> None:
    with pytest.raises(CommandError):
        run("set_price", make.H100, *arguments)
    assert not PriceVersion.objects.exists()


def test_sound_books_are_said_to_agree(tenant: Tenant) -> None:
    make.make_hold(make.make_balance(tenant), "ls-1")
    assert "1 accounts checked" in run("check_ledger")


def test_each_account_whose_sums_disagree_is_named(tenant: Tenant) -> None:
    wrong, held, sound = (make.make_balance(payer) for payer in (tenant, make.make_tenant(), make.make_tenant()))
    make.make_hold(held, "ls-1")
    Account.objects.filter(pk=wrong.pk).update(balance_ticks=F("balance_ticks") + 1)
    Account.objects.filter(pk=held.pk).update(held_ticks=7)
    errors = StringIO()
    with pytest.raises(CommandError) as refused:
        call_command("check_ledger", stderr=errors)
    assert refused.value.returncode == 1
    assert f"{wrong}: lines sum to {wrong.balance_ticks}, balance says {wrong.balance_ticks + 1}" in errors.getvalue()
    assert f"{held}: open holds sum to" in errors.getvalue()
    assert str(sound.tenant_id) not in errors.getvalue()
    release_hold(lease_id="ls-unknown")
    assert len(books.faults()) == 2
    assert LedgerEntry.objects.count() == 3
