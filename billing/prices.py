"""What things cost now, and how a new price is made. A price is never altered: a new one is a new version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from django.conf import settings
from django.db import transaction
from django.db.models import Max, OuterRef, Subquery

from billing import money
from billing.models import Plan, PlanPrice, PriceVersion, Sku
from portal.currencies import CURRENCIES
from portal.errors import InvalidInput
from portal.services import audit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from portal.actor import Actor

MODEL_LENGTH: Final = 96  # of Sku.gpu_model
# Thousandths of the base price.
DEFAULT_FACTORS: Final[Mapping[str, int]] = {Plan.ON_DEMAND: 1500, Plan.RESERVED: 700, Plan.SPOT: 300}


@dataclass(frozen=True, slots=True)
class PriceQuote:
    """What one GPU costs per hour under one plan, and the version that says so."""

    version_id: int
    micros_per_hour: int
    currency: str


def current_prices(
    *, gpu_models: Iterable[str] | None = None, currency: str | None = None
) -> dict[str, dict[str, PriceQuote]]:
    """``{GPU model: {plan: price}}`` as it stands now, in one query; a model without a price is missing."""
    code = currency or settings.CURRENCY
    newest = (
        PriceVersion.objects.filter(sku=OuterRef("version__sku"))
        .order_by()
        .values("sku")
        .annotate(n=Max("number"))
        .values("n")
    )
    rows = PlanPrice.objects.filter(
        version__sku__unit=Sku.Unit.GPU, version__sku__currency=code, version__number=Subquery(newest)
    )
    if gpu_models is not None:
        rows = rows.filter(version__sku__gpu_model__in=list(gpu_models))
    prices: dict[str, dict[str, PriceQuote]] = {}
    for model, plan, version_id, micros in rows.values_list(
        "version__sku__gpu_model", "plan", "version_id", "micros_per_hour"
    ):
        prices.setdefault(model, {})[plan] = PriceQuote(version_id, micros, code)
    return prices


@transaction.atomic
def set_price(
    *,
    gpu_model: str,
    base_micros_per_hour: int,
    actor: Actor,
    factors_milli: Mapping[str, int] | None = None,
    currency: str | None = None,
) -> PriceVersion:
    """Sell a GPU model at this base price from now on; ``factors_milli`` overrides the factors of single plans.

    The price that is current already is returned as it is. Leases that run keep the price they were ordered at.
    """
    model = gpu_model.strip()
    if not model or len(model) > MODEL_LENGTH:
        raise InvalidInput.field(
            "gpu_model", f"Write the GPU's name as nvidia-smi shows it, at most {MODEL_LENGTH} characters."
        )
    amounts = plan_amounts(base_micros_per_hour, factors_milli)
    sku = _locked_sku(model, currency or settings.CURRENCY)
    newest = sku.versions.order_by("-number").prefetch_related("plan_prices").first()
    if newest and newest.base_micros_per_hour == base_micros_per_hour:
        current = {price.plan: (price.factor_milli, price.micros_per_hour) for price in newest.plan_prices.all()}
        if current == amounts:
            return newest
    version = PriceVersion.objects.create(
        sku=sku,
        number=newest.number + 1 if newest else 1,
        base_micros_per_hour=base_micros_per_hour,
        created_by=actor.user,
    )
    PlanPrice.objects.bulk_create(
        PlanPrice(version=version, plan=plan, factor_milli=factor, micros_per_hour=micros)
        for plan, (factor, micros) in amounts.items()
    )
    facts = {plan: micros for plan, (_, micros) in amounts.items()}
    audit(actor=actor, action="price.set", obj=version, data={"sku": sku.code, "currency": sku.currency, **facts})
    return version


def plan_amounts(
    base_micros_per_hour: int, factors_milli: Mapping[str, int] | None = None
) -> dict[str, tuple[int, int]]:
    """``{plan: (factor in thousandths, µ per hour)}`` of a base price. InvalidInput names what is out of range."""
    if not 0 < base_micros_per_hour <= money.MAX_PRICE_MICROS:
        highest = money.MAX_PRICE_MICROS // money.MICROS_PER_UNIT
        raise InvalidInput.field("base_micros_per_hour", f"A price is above 0 and at most {highest} per hour.")
    amounts: dict[str, tuple[int, int]] = {}
    for plan, factor in {**DEFAULT_FACTORS, **(factors_milli or {})}.items():
        if plan not in DEFAULT_FACTORS:
            raise InvalidInput.field("factors", f"{plan!r} is not a plan; there are {', '.join(DEFAULT_FACTORS)}.")
        if not 0 < factor <= money.MAX_FACTOR_MILLI:
            raise InvalidInput.field("factors", f"The factor of {plan} is above 0 and at most 100.")
        micros = money.plan_price(base_micros_per_hour, factor)
        if not 0 < micros <= money.MAX_PRICE_MICROS:
            raise InvalidInput.field("factors", f"The price of {plan} would round to nothing, or beyond what is sold.")
        amounts[plan] = (factor, micros)
    return amounts


def _locked_sku(gpu_model: str, currency: str) -> Sku:
    """The SKU's row, locked: two new prices at once get two numbers."""
    if currency not in CURRENCIES:
        raise InvalidInput.field(
            "currency", f"{currency!r} is not a currency in use; write an ISO 4217 code such as USD."
        )
    sku, _ = Sku.objects.get_or_create(
        code=f"gpu:{gpu_model}", currency=currency, defaults={"gpu_model": gpu_model, "unit": Sku.Unit.GPU}
    )
    return Sku.objects.select_for_update().get(pk=sku.pk)
