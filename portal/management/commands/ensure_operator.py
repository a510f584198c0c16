"""``manage.py ensure_operator EMAIL --password-file FILE``: an operator who can sign in at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from allauth.account.models import EmailAddress
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.validators import validate_email
from django.db import transaction

from portal.actor import Actor
from portal.models import User
from portal.services import audit, ensure_personal_tenant


class Command(BaseCommand):
    """Makes the account, or gives an existing one the operator's rights and this password."""

    help = "Create or repair an operator account whose address counts as verified."

    def add_arguments(self, parser: CommandParser) -> None:
        """The address, and the password's file: a command line is seen by every user of a machine."""
        parser.add_argument("email")
        parser.add_argument(
            "--password-file", required=True, type=Path, help="file that holds the password on its first line"
        )

    @transaction.atomic
    def handle(self, *_: Any, email: str, password_file: Path, **__: Any) -> None:
        """Idempotent: a second run changes nothing but the password, and that only if it differs."""
        try:
            password = password_file.read_text(encoding="utf-8").splitlines()[0]
            validate_email(email)
            validate_password(password)
        except (OSError, IndexError) as error:
            raise CommandError(f"--password-file: cannot read a password from {password_file}.") from error
        except ValidationError as error:
            raise CommandError("; ".join(error.messages)) from error
        user = User.objects.filter(email__iexact=email).first()
        if user is None:
            user = User.objects.create_superuser(email, password)
            audit(actor=Actor.system("ensure_operator"), action="user.operator_created", obj=user)
        elif not (user.is_superuser and user.check_password(password)):
            user.is_staff = user.is_superuser = user.is_active = True
            user.set_password(password)
            user.save(update_fields=["is_staff", "is_superuser", "is_active", "password"])
            audit(actor=Actor.system("ensure_operator"), action="user.operator_repaired", obj=user)
        ensure_personal_tenant(user)
        EmailAddress.objects.update_or_create(user=user, email=user.email, defaults={"verified": True, "primary": True})
        self.stdout.write(f"{user.email} is an operator.")
