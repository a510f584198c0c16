"""The ledger, prices and top-ups only grow: triggers refuse UPDATE and DELETE (and TRUNCATE on PostgreSQL).

A later migration that rebuilds one of these tables on SQLite (any AlterField does) drops its triggers with the old
table and must put them back by running ``install`` again; tests/billing/test_append_only.py fails until it does.
"""

from collections.abc import Iterator

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

TABLES = ("billing_ledgerentry", "billing_priceversion", "billing_planprice", "billing_topup")


def sqlite_statements(table: str) -> Iterator[str]:
    for verb in ("UPDATE", "DELETE"):
        yield (
            f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
        )


def postgresql_statements(table: str) -> Iterator[str]:
    rows = f"BEFORE UPDATE OR DELETE ON {table} FOR EACH ROW"
    whole = f"BEFORE TRUNCATE ON {table} FOR EACH STATEMENT"
    yield f"CREATE TRIGGER {table}_no_change {rows} EXECUTE FUNCTION billing_append_only()"
    yield f"CREATE TRIGGER {table}_no_truncate {whole} EXECUTE FUNCTION billing_append_only()"


FUNCTION = """
CREATE OR REPLACE FUNCTION billing_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END
$$
"""


def install(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(FUNCTION, params=None)  # its % is no placeholder
        statements = postgresql_statements
    else:
        statements = sqlite_statements
    for table in TABLES:
        for statement in statements(table):
            schema_editor.execute(statement)


def remove(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("DROP FUNCTION billing_append_only() CASCADE")
        return
    for table in TABLES:
        for verb in ("update", "delete"):
            schema_editor.execute(f"DROP TRIGGER {table}_no_{verb}")


class Migration(migrations.Migration):
    dependencies = [("billing", "0001_initial")]

    operations = [migrations.RunPython(install, remove)]
