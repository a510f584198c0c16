"""Quotes: a price that holds for five minutes, signed, so that showing one writes nothing to the database.

A quote names its tenant, the whole request, the price with its version, and a random id that at most one lease has.
An unexpired quote keeps its price whatever happens to the price list (case B03).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.core import signing
from django.utils import timezone

from billing import money
from billing.models import Plan
from portal import ids
from portal.errors import DomainError, InvalidInput, OfferChanged
from rental import catalog
from rental.requests import LeaseRequest

if TYPE_CHECKING:
    from portal.models import Tenant
    from rental.placement import Reason

SALT: Final = "rental.quote"
MAX_TOKEN: Final = 8192


@dataclass(frozen=True)
class Quote:
    """What was promised. ``price_micros_per_hour`` is per GPU, ``hold_ticks`` what the order sets aside at first.

    ``available`` and ``reasons`` are of the moment the quote was made; they are not part of the promise.
    """

    id: str
    tenant_id: str
    request: LeaseRequest
    gpu_memory_gb: int
    price_version_id: int
    price_micros_per_hour: int
    currency: str
    expires_at: datetime
    token: str = ""
    available: bool = True
    reasons: tuple[Reason, ...] = ()
    simulated: bool = False

    @property
    def units(self) -> int:
        """GPUs charged for."""
        return self.request.gpu_count

    @property
    def total_micros_per_hour(self) -> int:
        """What all of it costs per hour, µ."""
        return self.units * self.price_micros_per_hour

    @property
    def longest_s(self) -> int:
        """Seconds it can run: the maximum duration, or what the spend cap pays for if that is less."""
        return longest_s(self.request.max_duration_s, self.request.spend_cap_micros, self.total_micros_per_hour)

    @property
    def hold_ticks(self) -> int:
        """One hour of it, or all of it if it is shorter."""
        return money.ticks(min(settings.HOLD_SECONDS, self.longest_s), self.units, self.price_micros_per_hour)

    @property
    def most_ticks(self) -> int:
        """What it can cost at most."""
        return money.ticks(self.longest_s, self.units, self.price_micros_per_hour)


def longest_s(max_duration_s: int, spend_cap_micros: int | None, total_micros_per_hour: int) -> int:
    """Whole seconds until the first of both limits."""
    if spend_cap_micros is None:
        return max_duration_s
    return min(max_duration_s, money.from_micros(spend_cap_micros) // total_micros_per_hour)


def make(*, tenant: Tenant, request: LeaseRequest, now: datetime | None = None) -> Quote:
    """Price a request. Raises InvalidInput (unknown model, cap too low), OfferChanged or ``price_above_limit``."""
    now = now or timezone.now()
    offer = _offer(request, now)
    price = offer.prices.get(request.plan)
    if price is None:
        raise OfferChanged(f"{offer.short_name} has no price under the plan {Plan(request.plan).label} now.")
    _check_price(request, price)
    free = offer.max_free_count >= request.gpu_count
    quote = Quote(
        id=ids.quote_id(),
        tenant_id=tenant.pk,
        request=request,
        gpu_memory_gb=offer.gpu_memory_gb,
        price_version_id=offer.price_version_ids[request.plan],
        price_micros_per_hour=price,
        currency=offer.currency,
        # Signed in whole seconds; rounded up, so that it holds for at least as long as was said.
        expires_at=datetime.fromtimestamp(math.ceil(now.timestamp()) + settings.QUOTE_SECONDS, tz=UTC),
        available=free,
        reasons=() if free else offer.reasons,
        simulated=offer.simulated,
    )
    _check_cap(quote)
    return _signed(quote)


def read(token: str, *, tenant: Tenant) -> Quote:
    """The quote in a token we signed for this tenant, expired or not. Raises InvalidInput for anything else."""
    try:
        data: dict[str, Any] = signing.loads(token[: MAX_TOKEN + 1], salt=SALT)
    except signing.BadSignature:
        raise InvalidInput.field("quote", "no quote of ours; ask for a new one.", code="invalid_quote") from None
    if data["t"] != tenant.pk:
        raise InvalidInput.field("quote", "this quote was made for another tenant.", code="invalid_quote")
    return Quote(
        id=data["q"],
        tenant_id=data["t"],
        request=LeaseRequest.from_dict(data["r"]),
        gpu_memory_gb=data["m"],
        price_version_id=data["v"],
        price_micros_per_hour=data["p"],
        currency=data["c"],
        expires_at=datetime.fromtimestamp(data["x"], tz=UTC),
        token=token,
    )


def check_fresh(quote: Quote, now: datetime) -> None:
    """Raises OfferChanged with the price of now when the quote has expired."""
    if now < quote.expires_at:
        return
    offer = catalog.find(quote.request.gpu_model, currency=quote.currency, now=now)
    price = offer.prices.get(quote.request.plan) if offer else None
    raise OfferChanged(
        "This quote has expired; ask for a new one.",
        extra={"price_micros_per_hour": price, "currency": quote.currency, "expired_at": _stamp(quote.expires_at)},
    )


def _offer(request: LeaseRequest, now: datetime) -> catalog.Offer:
    """The offer the request is about, narrowed to the boards its filters admit; InvalidInput names what finds none."""
    offer = None
    wanted = ["gpu_model", *(n for n in ("gpu_memory_gb", "cuda_min") if getattr(request, n) is not None)]
    filters: dict[str, Any] = {}
    for name in wanted:
        filters[name] = getattr(request, name)
        offer = catalog.find(**filters, currency=settings.CURRENCY, now=now)
        if offer is None:
            raise InvalidInput.field(
                name, f"no GPU of the fleet has {filters[name]}; /api/v1/offers lists what there is."
            )
    if offer is None or request.gpu_count > offer.max_gpu_count:
        most = offer.max_gpu_count if offer else 0
        raise InvalidInput.field("gpu_count", f"a lease runs on one node, and the largest has {most} of this GPU.")
    return offer


def _check_price(request: LeaseRequest, price: int) -> None:
    limit = request.max_price_micros_per_hour
    if limit is not None and price > limit:
        raise DomainError(
            "The price is above your limit.",
            code="price_above_limit",
            extra={"price_micros_per_hour": price, "max_price_micros_per_hour": limit},
        )


def _check_cap(quote: Quote) -> None:
    least = money.ticks(60, quote.units, quote.price_micros_per_hour)
    cap = quote.request.spend_cap_micros
    if cap is not None and money.from_micros(cap) < least:
        raise InvalidInput.field(
            "spend_cap_micros", f"{cap} does not pay for one minute; {money.micros_ceil(least)} or more is accepted."
        )


def _signed(quote: Quote) -> Quote:
    data = {
        "q": quote.id,
        "t": quote.tenant_id,
        "r": quote.request.as_dict(),
        "m": quote.gpu_memory_gb,
        "v": quote.price_version_id,
        "p": quote.price_micros_per_hour,
        "c": quote.currency,
        "x": int(quote.expires_at.timestamp()),
    }
    token = signing.dumps(data, salt=SALT, compress=True)
    return Quote(**{**quote.__dict__, "token": token})


def _stamp(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
