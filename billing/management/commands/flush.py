"""``manage.py flush`` empties every table; the ledger is append-only, so it works on the databases of tests alone.

Django's test runner empties tables through this command between tests that commit. It is the one place that lifts the
triggers, in the transaction that puts them back, and it refuses outside of tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.management.base import CommandError
from django.core.management.commands.flush import Command as DjangoCommand
from django.db import connections, transaction

from billing.books import APPEND_ONLY

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


class Command(DjangoCommand):
    """Django's flush, refused where money is real."""

    def handle(self, **options: Any) -> None:
        """Lift the triggers, empty the tables, put the triggers back; all or nothing."""
        if not settings.TESTING:
            raise CommandError("flush would erase the ledger. Drop the database itself if that is what you want.")
        connection = connections[options["database"]]
        with transaction.atomic(using=options["database"]):
            put_back = _lift_triggers(connection)
            super().handle(**options)
            with connection.cursor() as cursor:
                for statement in put_back:
                    cursor.execute(statement)


def _lift_triggers(connection: BaseDatabaseWrapper) -> list[str]:
    """Take the triggers away and return the statements that bring them back."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            for table in APPEND_ONLY:
                cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
            return [f"ALTER TABLE {table} ENABLE TRIGGER USER" for table in APPEND_ONLY]
        marks = ", ".join(["%s"] * len(APPEND_ONLY))
        query = f"SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name IN ({marks})"  # noqa: S608 - our own names
        cursor.execute(query, APPEND_ONLY)
        triggers = cursor.fetchall()
        for name, _ in triggers:
            cursor.execute(f"DROP TRIGGER {name}")
    return [sql for _, sql in triggers]
