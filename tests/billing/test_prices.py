"""Prices by version: a new one never changes an old one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from billing.models import PriceVersion
from billing.services import PriceQuote, current_prices, set_price
from portal.errors import InvalidInput
from portal.models import AuditEvent
from tests import make

if TYPE_CHECKING:
    from pytest_django import DjangoAssertNumQueries

    from portal.actor import Actor

pytestmark = pytest.mark.usefixtures("sound_books")


def test_a_price_costs_the_base_times_the_factor_of_each_plan(actor: Actor) -> None:
    version = set_price(gpu_model=make.H100, base_micros_per_hour=1_660_000, actor=actor)
    assert current_prices() == {
        make.H100: {
            "on_demand": PriceQuote(version.pk, 2_490_000, "USD"),
            "reserved": PriceQuote(version.pk, 1_162_000, "USD"),
            "spot": PriceQuote(version.pk, 498_000, "USD"),
        }
    }


def test_a_new_price_is_a_new_version_and_the_old_one_stays(actor: Actor) -> None:
    old = set_price(gpu_model=make.H100, base_micros_per_hour=1_000_000, actor=actor)
    new = set_price(gpu_model=make.H100, base_micros_per_hour=2_000_000, actor=actor, factors_milli={"spot": 250})
    assert (old.number, new.number) == (1, 2)
    assert old.plan_prices.get(plan="on_demand").micros_per_hour == 1_500_000
    assert {plan: quote.micros_per_hour for plan, quote in current_prices()[make.H100].items()} == {
        "on_demand": 3_000_000,
        "reserved": 1_400_000,
        "spot": 500_000,
    }


def test_the_price_that_stands_is_not_made_again(actor: Actor) -> None:
    first = set_price(gpu_model=make.H100, base_micros_per_hour=1_000_000, actor=actor)
    assert set_price(gpu_model=make.H100, base_micros_per_hour=1_000_000, actor=actor).pk == first.pk
    assert (
        set_price(gpu_model=make.H100, base_micros_per_hour=1_000_000, actor=actor, factors_milli={"spot": 1}) != first
    )
    assert PriceVersion.objects.count() == AuditEvent.objects.filter(action="price.set").count() == 2


def test_each_currency_has_its_own_prices(actor: Actor) -> None:
    set_price(gpu_model=make.H100, base_micros_per_hour=1_000_000, actor=actor)
    set_price(gpu_model=make.H100, base_micros_per_hour=150_000_000, actor=actor, currency="JPY")
    assert current_prices()[make.H100]["on_demand"].micros_per_hour == 1_500_000
    assert current_prices(currency="JPY")[make.H100]["on_demand"].micros_per_hour == 225_000_000
    assert current_prices(currency="EUR") == {}


def test_prices_of_any_number_of_models_cost_one_query(
    actor: Actor, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(7):
        for base in (1_000_000, 2_000_000):
            set_price(gpu_model=f"GPU {number}", base_micros_per_hour=base, actor=actor)
    with django_assert_num_queries(1):
        assert len(current_prices()) == 7
    with django_assert_num_queries(1):
        assert list(current_prices(gpu_models=["GPU 3", "GPU 99"])) == ["GPU 3"]


@pytest.mark.parametrize("base", [0, -1, 10**12 + 1, 2**63])
def test_a_base_price_out_of_range_is_refused_by_name(actor: Actor, base: int) -> None:
    with pytest.raises(InvalidInput) as refused:
        set_price(gpu_model=make.H100, base_micros_per_hour=base, actor=actor)
    assert list(refused.value.errors) == ["base_micros_per_hour"]


@pytest.mark.parametrize(
    ("base", "factors"), [(1000, {"spot": 0}), (1000, {"spot": 100_001}), (1000, {"gold": 1}), (1, {}), (10**12, {})]
)
def test_factors_that_give_no_price_are_refused_by_name(actor: Actor, base: int, factors: dict[str, int]) -> None:
    with pytest.raises(InvalidInput) as refused:
        set_price(gpu_model=make.H100, base_micros_per_hour=base, actor=actor, factors_milli=factors)
    assert list(refused.value.errors) == ["factors"]
    assert not PriceVersion.objects.exists()


@pytest.mark.parametrize("model", ["", "  ", "x" * 97])
def test_a_model_without_a_usable_name_is_refused(actor: Actor, model: str) -> None:
    with pytest.raises(InvalidInput):
        set_price(gpu_model=model, base_micros_per_hour=1_000_000, actor=actor)
