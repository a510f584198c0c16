"""The database itself refuses to change the past, on SQLite and on PostgreSQL."""

from __future__ import annotations

from importlib import import_module
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction

from billing import books
from billing.models import LedgerEntry, PlanPrice, PriceVersion, TopUp
from billing.services import book_top_up, set_price
from portal.actor import Actor
from portal.models import Tenant
from tests import make

if TYPE_CHECKING:
    from django.db.models import Model

CHANGES: list[tuple[type[Model], dict[str, Any]]] = [
    (LedgerEntry, {"memo": "nothing happened"}),
    (PriceVersion, {"base_micros_per_hour": 1}),
    (PlanPrice, {"micros_per_hour": 1}),
    (TopUp, {"amount_micros": 1}),
]


@pytest.fixture
def past(sound_books: None, tenant: Tenant, actor: Actor) -> None:
    """One row in each append-only table."""
    set_price(gpu_model=make.H100, base_micros_per_hour=1_660_000, actor=actor)
    book_top_up(tenant=tenant, amount_micros=5_000_000, reference="transfer 7", actor=actor)


@pytest.mark.usefixtures("past")
@pytest.mark.parametrize(("model", "values"), CHANGES)
def test_a_row_of_the_past_cannot_be_changed(model: type[Model], values: dict[str, Any]) -> None:
    rows = model._default_manager.all()
    before = list(rows.values())
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        rows.update(**values)
    assert list(rows.values()) == before


@pytest.mark.usefixtures("past")
@pytest.mark.parametrize("model", [model for model, _ in CHANGES])
def test_a_row_of_the_past_cannot_be_deleted(model: type[Model]) -> None:
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {model._meta.db_table}")  # noqa: S608 - our own table's name
    assert model._default_manager.exists()


@pytest.mark.django_db(transaction=True)  # PostgreSQL truncates nothing with changes of this transaction pending
@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no TRUNCATE")
@pytest.mark.parametrize("model", [model for model, _ in CHANGES])
def test_a_table_of_the_past_cannot_be_truncated(model: type[Model]) -> None:
    with pytest.raises(DatabaseError, match="append-only"), connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {model._meta.db_table} CASCADE")


@pytest.mark.usefixtures("past")
def test_who_booked_money_cannot_be_deleted(actor: Actor) -> None:
    assert actor.user is not None
    with pytest.raises(DatabaseError, match=r"protected foreign keys|append-only"), transaction.atomic():
        actor.user.delete()


@pytest.mark.django_db(transaction=True)
def test_tables_can_be_emptied_between_tests_and_are_protected_again_after() -> None:
    tenant = make.make_tenant()
    make.make_balance(tenant)
    call_command("flush", interactive=False, verbosity=0)
    assert not LedgerEntry.objects.exists()
    assert books.missing_triggers() == []


@pytest.mark.django_db(transaction=True)
def test_flush_is_refused_where_money_is_real(settings: Any) -> None:
    make.make_balance(make.make_tenant())
    settings.TESTING = False
    with pytest.raises(CommandError, match="erase the ledger"):
        call_command("flush", interactive=False, verbosity=0)
    assert LedgerEntry.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_the_migration_can_be_taken_back_and_done_again() -> None:
    try:
        call_command("migrate", "billing", "0001", verbosity=0)
        assert len(books.missing_triggers()) == len(CHANGES) * 2
    finally:
        call_command("migrate", "billing", verbosity=0)
    assert books.missing_triggers() == []


@pytest.mark.django_db(transaction=True)
def test_the_check_says_when_the_triggers_are_gone() -> None:
    triggers = import_module("billing.migrations.0002_ledger_append_only")
    try:
        with connection.schema_editor() as editor:
            triggers.remove(None, editor)
        with pytest.raises(CommandError):
            call_command("check_ledger", stderr=StringIO())
    finally:
        with connection.schema_editor() as editor:
            triggers.install(None, editor)
    assert books.missing_triggers() == []
