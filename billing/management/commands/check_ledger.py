"""``manage.py check_ledger``: do the sums of the books agree, and are the lines protected?"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from billing import books
from billing.models import Account


class Command(BaseCommand):
    """Exit status 0 when all agrees, 1 with each faulty account or missing trigger named."""

    help = (
        "Check that ledger lines sum to balances, open holds to what is held, and that append-only triggers are there."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the faults, if any."""
        found = [str(fault) for fault in books.faults()]
        found += [f"missing trigger: {name}" for name in books.missing_triggers()]
        for line in found:
            self.stderr.write(line)
        if found:
            raise CommandError(f"{len(found)} faults in the books.", returncode=1)
        self.stdout.write(f"{Account.objects.count()} accounts checked, the books agree.")
