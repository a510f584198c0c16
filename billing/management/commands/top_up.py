"""``manage.py top_up TENANT_OR_EMAIL AMOUNT --reference …``: book a payment that arrived."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from billing.amounts import read_amount
from billing.money import amount_text
from billing.services import book_top_up
from portal.actor import Actor
from portal.errors import DomainError
from portal.models import Tenant, User
from portal.services import ensure_personal_tenant

if TYPE_CHECKING:
    from argparse import ArgumentParser


class Command(BaseCommand):
    """Books once: the same reference and amount again changes nothing and says so by the same id."""

    help = "Book a payment to a tenant's balance. The same reference is the same payment."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Whom, how much, and what the payment can be found by."""
        parser.add_argument("tenant", help="tenant id (tn-…), or the e-mail address of a user: the personal tenant")
        parser.add_argument("amount", help="digits and a dot, for example 1500.00")
        parser.add_argument("--reference", required=True, help="what the payment can be found by; books once")
        parser.add_argument("--currency", default=settings.CURRENCY)
        parser.add_argument("--as", dest="operator", metavar="EMAIL", help="the operator who books, for the audit log")

    def handle(self, *args: Any, **options: Any) -> None:
        """Book and print the top-up."""
        try:
            top_up = book_top_up(
                tenant=_tenant(options["tenant"]),
                amount_micros=read_amount(options["amount"], options["currency"]),
                reference=options["reference"],
                currency=options["currency"],
                actor=_actor(options["operator"]),
            )
        except DomainError as error:
            raise CommandError(error.detail) from error
        amount = f"{amount_text(top_up.amount_micros, options['currency'])} {options['currency']}"
        self.stdout.write(f"{top_up.pk}: {amount} for {top_up.account.tenant} ({top_up.account.tenant_id}).")


def _tenant(text: str) -> Tenant:
    if "@" in text:
        user = User.objects.filter(email__iexact=text).first()
        if user:
            return ensure_personal_tenant(user)
    tenant = Tenant.objects.filter(pk=text).first()
    if tenant is None:
        raise CommandError(f"There is no tenant or user {text!r}.")
    return tenant


def _actor(email: str | None) -> Actor:
    if email is None:
        return Actor.system("command line")
    user = User.objects.filter(email__iexact=email, is_staff=True, is_active=True).first()
    if user is None:
        raise CommandError(f"{email!r} is not an active operator.")
    return Actor.of_user(user)
