"""``manage.py remove_second_factor EMAIL``: for somebody who lost phone, passkeys and recovery codes."""

from __future__ import annotations

from typing import Any

from allauth.mfa.models import Authenticator
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from portal.account_mails import second_factor_removed
from portal.actor import Actor
from portal.models import User
from portal.owed_mails import owe_to
from portal.services import audit


class Command(BaseCommand):
    """Takes all of a person's second factors away; make sure first that it is them who asks."""

    help = "Remove every passkey, authenticator app and recovery code of an account. Its owner is told by mail."

    def add_arguments(self, parser: CommandParser) -> None:
        """Whose."""
        parser.add_argument("email")

    def handle(self, *_: Any, email: str, **__: Any) -> None:
        """Says what was removed; nothing to remove is no error."""
        user = User.objects.filter(email__iexact=email, is_active=True).first()
        if user is None:
            raise CommandError(f"email: no active account has the address {email}.")
        with transaction.atomic():
            removed = sorted(Authenticator.objects.filter(user=user).values_list("type", flat=True))
            Authenticator.objects.filter(user=user).delete()
            audit(
                actor=Actor.system("remove_second_factor"),
                action="user.second_factor_reset",
                obj=user,
                data={"types": removed},
            )
            if removed:
                owe_to(user, second_factor_removed)
        self.stdout.write(f"{user.email}: {', '.join(removed) or 'nothing'} removed.")
