"""The rent form and its live quote. Each view parses, calls one service, renders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views import View

from billing.models import Account
from portal import formatting, rate_limits
from portal.actor import Actor
from portal.errors import DomainError, InsufficientFunds, InvalidInput, NoCapacity, OfferChanged
from portal.models import SshKey
from portal.services import current_tenant
from rental import catalog, idle_words, quotes, services, words
from rental.forms import RentForm
from rental.views import person

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portal.models import Tenant
    from rental.catalog import Offer
    from rental.models import Lease
    from rental.quotes import Quote

# What a link may fill in: the catalog's buttons and "rent the same again".
PREFILLED = ("gpu_model", "gpu_count", "plan", "image", "name", "idle_timeout")


class _Desk:
    """One visit to the form: the fleet, the tenant's keys and balance, the form, and the price that came of it."""

    def __init__(self, request: HttpRequest) -> None:
        self.request = request
        self.tenant: Tenant = current_tenant(request)
        self.offers: Sequence[Offer] = [offer for offer in catalog.offers() if offer.prices]
        self.keys: Sequence[SshKey] = list(SshKey.objects.admitted_to(self.tenant.pk).order_by("created_at", "pk"))
        self.account = Account.objects.filter(tenant=self.tenant, currency=settings.CURRENCY).first()
        self.quote: Quote | None = None
        self.refusal: DomainError | None = None
        posted = request.POST if request.method == "POST" else None
        self.form = RentForm(posted, offers=self.offers, keys=self.keys, initial=self._initial())

    def price(self) -> None:
        """Make a quote of a valid form; what stands against it is shown at its field, or in the panel."""
        if not self.form.is_valid():
            return
        try:
            rate_limits.take(rate_limits.quotes(), self.tenant.pk)
            self.quote = services.build_quote(
                tenant=self.tenant, user=person(self.request), request=self.form.request()
            )
        except InvalidInput as error:
            self.form.refuse(error)
        except DomainError as error:
            self.refusal = error

    def order(self) -> Lease | None:
        """The lease, when the price on the reader's screen is still the price of what the form says; else None."""
        token = self.request.POST.get("quote", "")
        if not self.form.is_valid() or not token:
            return None
        try:
            if quotes.read(token, tenant=self.tenant).request != self.form.request():
                return None
            rate_limits.take(rate_limits.orders(), self.tenant.pk)
            lease, _created = services.request_lease(
                tenant=self.tenant,
                actor=Actor.of(self.request),
                quote_token=token,
                name=self.form.cleaned_data["name"],
            )
        except OfferChanged:
            return None
        except InvalidInput as error:
            if error.code != "invalid_quote":
                self.form.refuse(error)
            return None
        except DomainError as error:
            self.refusal = error
            return None
        return lease

    def context(self) -> dict[str, Any]:
        """What the page and the panel read."""
        available = self.account.available_ticks if self.account else 0
        quote = self.quote
        chosen = str(self.form["gpu_model"].value() or "")
        offer = next((offer for offer in self.offers if offer.gpu_model == chosen), None)
        return {
            "form": self.form,
            "offers": self.offers,
            "keys": self.keys,
            "chosen": offer,
            "currency_symbol": formatting.SYMBOLS.get(settings.CURRENCY, settings.CURRENCY),
            "quote": quote,
            "refusal": self.refusal,
            "short": isinstance(self.refusal, InsufficientFunds) or bool(quote and quote.hold_ticks > available),
            "available_ticks": available,
            "hold_percent": min(100, quote.hold_ticks * 100 // available) if quote and available > 0 else 0,
            "reasons": self._reasons(),
            "gpu_words": f"{quote.units} × {offer.short_name}" if quote and offer else "",
            "idle_limit": _idle_limit(quote),
            "expires_unix": int(quote.expires_at.timestamp()) if quote else 0,
            "renew_s": max(1, _seconds_left(quote) - 5) if quote else 0,
        }

    def _reasons(self) -> list[str]:
        if isinstance(self.refusal, NoCapacity):
            return words.reasons(self.refusal.extra.get("reasons", []))
        return words.reasons(self.quote.reasons) if self.quote and not self.quote.available else []

    def _initial(self) -> dict[str, Any]:
        """The link's wishes; else the cheapest model that is free."""
        said: dict[str, Any] = {name: value for name in PREFILLED if (value := self.request.GET.get(name, ""))}
        if "gpu_model" not in said and self.offers:
            free = [offer for offer in self.offers if offer.max_free_count]
            said["gpu_model"] = (free or self.offers)[0].gpu_model
        return said


@method_decorator(login_required, name="dispatch")
class Rent(View):
    """Choose, see the price, start."""

    def get(self, request: HttpRequest) -> HttpResponse:
        """The form, with the price of what it suggests."""
        desk = _Desk(request)
        facts = {name: desk.form.get_initial_for_field(field, name) for name, field in desk.form.fields.items()}
        unbound = desk.form
        desk.form = RentForm(facts, offers=desk.offers, keys=desk.keys)
        if desk.offers and desk.keys:
            desk.price()
        else:
            desk.form = unbound  # nothing can be priced yet; the page says what is missing
        return render(request, "rental/rent.html", desk.context())

    def post(self, request: HttpRequest) -> HttpResponse:
        """Start, or show the price (``do=price``). A second click orders the same quote and gets the same lease."""
        desk = _Desk(request)
        if request.POST.get("do") != "price":
            lease = desk.order()
            if lease is not None:
                return redirect("lease", lease.pk)
        if desk.refusal is None and not desk.form.errors:
            desk.price()
            if request.POST.get("do") != "price" and desk.quote:
                messages.warning(request, _("The price was made anew. Look at it, then start."))
        elif desk.refusal is not None:
            refused, desk.refusal = desk.refusal, None
            desk.price()
            desk.refusal = refused
        status = desk.refusal.status if desk.refusal else 400 if desk.form.errors else 200
        return render(request, "rental/rent.html", desk.context(), status=status)


@method_decorator(login_required, name="dispatch")
class QuotePanel(View):
    """The panel beside the form, made anew with every change (htmx). Always 200: htmx swaps nothing else."""

    def post(self, request: HttpRequest) -> HttpResponse:
        """The price of what the form says now, or what stands against it."""
        desk = _Desk(request)
        desk.price()
        return render(request, "rental/_quote_answer.html", desk.context())


def _idle_limit(quote: Quote | None) -> str:
    """How long it may be idle, in words; empty without a limit."""
    seconds = quote.request.inactive_timeout_s if quote else None
    return "" if seconds is None else idle_words.span(seconds)


def _seconds_left(quote: Quote) -> int:
    return int((quote.expires_at - timezone.now()).total_seconds())
