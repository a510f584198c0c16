"""What can be rented: one offer per GPU model, made of the live fleet and the current prices. Writes nothing."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from billing.models import Plan
from billing.services import current_prices
from rental import fleet, placement

if TYPE_CHECKING:
    from datetime import datetime

    from billing.services import PriceQuote

FACTS_FILE = Path(__file__).with_name("data") / "gpu_models.json"
ORDERED_PLANS = (Plan.ON_DEMAND.value, Plan.SPOT.value)


@dataclass(frozen=True)
class ModelFacts:
    """Published figures of a GPU model, dense tensor rates; None is unknown, 0 is "the hardware lacks it"."""

    short_name: str
    architecture: str | None = None
    compute_capability: str | None = None
    memory_gb: int | None = None
    memory_type: str | None = None
    memory_bandwidth_gbs: float | None = None
    fp16_tensor_tflops: float | None = None
    fp8_tensor_tflops: float | None = None
    fp32_tflops: float | None = None
    nvlink_gbs: float | None = None
    source: str = ""


@dataclass(frozen=True)
class Offer:
    """A line of the catalog. ``prices`` is ``{plan: µ per GPU and hour}``; ``max_gpu_count`` the largest node's group;
    ``max_free_count`` the largest group that is free on one node now; ``reasons`` say what stands in the way when
    nothing is free or there is no price.
    """

    id: str
    gpu_model: str
    short_name: str
    gpu_memory_gb: int
    total_count: int
    free_count: int
    max_gpu_count: int
    max_free_count: int
    prices: dict[str, int]
    currency: str
    simulated: bool
    facts: ModelFacts
    price_version_ids: dict[str, int] = field(default_factory=dict)
    reasons: tuple[placement.Reason, ...] = ()


@dataclass(frozen=True)
class Market:
    """The fleet and the current prices at one moment; what offers are made of."""

    gpus: list[fleet.FleetGpu]
    prices: dict[str, dict[str, PriceQuote]]


def market(*, gpu_model: str | None = None, currency: str | None = None, now: datetime | None = None) -> Market:
    """Read it, of one model if named. Two queries at any fleet size."""
    gpus = fleet.read(now=now or timezone.now(), gpu_model=gpu_model)
    return Market(gpus, current_prices(gpu_models={gpu.model for gpu in gpus}, currency=currency))


@cache
def _known_models() -> dict[str, ModelFacts]:
    known: dict[str, dict[str, Any]] = json.loads(FACTS_FILE.read_text(encoding="utf-8"))
    return {name: ModelFacts(**facts) for name, facts in known.items()}


def model_facts(gpu_model: str) -> ModelFacts:
    """Figures of a model by its NVML name; a model we have no data on gets its own name, shortened, and no figures."""
    known = _known_models().get(gpu_model)
    return known or ModelFacts(short_name=re.sub(r"^NVIDIA (GeForce )?|^Tesla ", "", gpu_model) or gpu_model)


def offer_id(gpu_model: str) -> str:
    """A stable, URL-safe name for a model's offer: ``nvidia-h100-80gb-hbm3``."""
    return re.sub(r"[^a-z0-9]+", "-", gpu_model.lower()).strip("-")


def offers(
    *,
    gpu_model: str | None = None,
    gpu_count: int = 1,
    gpu_memory_gb: int | None = None,
    plan: str | None = None,
    max_price_micros_per_hour: int | None = None,
    cuda_min: str | None = None,
    only_free: bool = False,
    currency: str | None = None,
    now: datetime | None = None,
    on: Market | None = None,
) -> list[Offer]:
    """Offers that fit the filters, cheapest on-demand first, those without a price last. Two queries, none with ``on``.

    ``gpu_memory_gb`` and ``cuda_min`` are least values, ``max_price_micros_per_hour`` is per GPU under ``plan`` (on
    demand when none is given), ``only_free`` keeps what has ``gpu_count`` GPUs free on one node now.
    """
    on = on or market(gpu_model=gpu_model, currency=currency, now=now)
    groups: dict[str, list[fleet.FleetGpu]] = {}
    for gpu in on.gpus:
        right = gpu_model is None or gpu.model == gpu_model
        if right and fleet.admits(gpu, gpu_memory_gb=gpu_memory_gb, cuda_min=cuda_min):
            groups.setdefault(gpu.model, []).append(gpu)
    found = [_offer(model, gpus, on.prices.get(model, {}), gpu_count) for model, gpus in groups.items()]
    wanted_plan = plan or Plan.ON_DEMAND.value
    kept = [
        offer
        for offer in found
        if offer.max_gpu_count >= gpu_count
        and (plan is None or plan in offer.prices)
        and (not only_free or (offer.max_free_count >= gpu_count and offer.prices))
        and _affordable(offer, wanted_plan, max_price_micros_per_hour)
    ]
    return sorted(kept, key=lambda offer: (offer.prices.get(wanted_plan, float("inf")), offer.gpu_model))


def find(
    gpu_model: str,
    *,
    gpu_memory_gb: int | None = None,
    cuda_min: str | None = None,
    currency: str | None = None,
    now: datetime | None = None,
) -> Offer | None:
    """The offer of one model, None when the fleet has no such GPU that passes the filters."""
    found = offers(gpu_model=gpu_model, gpu_memory_gb=gpu_memory_gb, cuda_min=cuda_min, currency=currency, now=now)
    return next(iter(found), None)


def _affordable(offer: Offer, plan: str, limit: int | None) -> bool:
    return limit is None or (plan in offer.prices and offer.prices[plan] <= limit)


def _offer(model: str, gpus: list[fleet.FleetGpu], prices: dict[str, PriceQuote], gpu_count: int) -> Offer:
    nodes = fleet.snapshot(gpus).nodes
    free = {node.id: sum(gpu.state == placement.FREE for gpu in node.gpus) for node in nodes}
    ordered = {plan: prices[plan] for plan in ORDERED_PLANS if plan in prices}
    reasons = () if max(free.values()) >= gpu_count else placement.reasons_for(nodes, gpu_count)
    if not ordered:
        reasons = (placement.Reason("no_price", len(gpus), "no price is set for this GPU yet"), *reasons)
    facts = model_facts(model)
    return Offer(
        id=offer_id(model),
        gpu_model=model,
        short_name=facts.short_name,
        gpu_memory_gb=min(gpu.memory_gb for gpu in gpus),
        total_count=len(gpus),
        free_count=sum(free.values()),
        max_gpu_count=max(len(node.gpus) for node in nodes),
        max_free_count=max(free.values()),
        prices={plan: price.micros_per_hour for plan, price in ordered.items()},
        price_version_ids={plan: price.version_id for plan, price in ordered.items()},
        currency=next((price.currency for price in ordered.values()), ""),
        simulated=all(gpu.simulated for gpu in gpus),
        facts=facts,
        reasons=reasons,
    )
