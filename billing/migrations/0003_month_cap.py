"""A tenant may set how much it spends in a calendar month."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("billing", "0002_ledger_append_only")]

    operations = [
        migrations.AddField(
            model_name="account",
            name="month_cap_micros",
            field=models.BigIntegerField(
                blank=True,
                help_text="per calendar month, UTC; null: none",
                null=True,
                verbose_name="spend cap per month, µ",
            ),
        ),
        migrations.AddConstraint(
            model_name="account",
            constraint=models.CheckConstraint(
                condition=models.Q(("month_cap_micros__isnull", True), ("month_cap_micros__gt", 0), _connector="OR"),
                name="account_month_cap_positive",
            ),
        ),
    ]
