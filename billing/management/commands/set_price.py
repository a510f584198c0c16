"""``manage.py set_price "NVIDIA H100 80GB HBM3" 2.49``: sell a GPU model at this base price per hour from now on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from billing.amounts import read_factor, read_price
from billing.models import Plan
from billing.money import amount_text
from billing.services import set_price
from portal.actor import Actor
from portal.errors import DomainError

if TYPE_CHECKING:
    from argparse import ArgumentParser


class Command(BaseCommand):
    """Makes a new price version, or none where the price is this already."""

    help = "Set the base price of a GPU model. Plans cost the base times their factor."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """What, how much, and factors that differ from the usual ones."""
        parser.add_argument("gpu_model", help="the GPU's name as nvidia-smi shows it")
        parser.add_argument("base_price", help="per GPU and hour: digits and a dot, for example 2.49")
        parser.add_argument("--currency", default=settings.CURRENCY)
        for plan in Plan:
            parser.add_argument(f"--{plan.value.replace('_', '-')}", metavar="FACTOR", help=f"factor of {plan.value}")

    def handle(self, *args: Any, **options: Any) -> None:
        """Set and print the prices."""
        try:
            version = set_price(
                gpu_model=options["gpu_model"],
                base_micros_per_hour=read_price(options["base_price"]),
                factors_milli={plan.value: read_factor(options[plan]) for plan in Plan if options[plan] is not None},
                currency=options["currency"],
                actor=Actor.system("command line"),
            )
        except DomainError as error:
            raise CommandError(error.detail) from error
        currency = version.sku.currency
        self.stdout.write(f"{version.sku} version {version.number}, {currency} per GPU and hour:")
        for price in version.plan_prices.order_by("pk"):
            self.stdout.write(f"  {price.plan:<10} {amount_text(price.micros_per_hour, currency)}")
