"""Warnings about leases, each given once."""

import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("rental", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="LeaseNotice",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "key",
                    models.CharField(help_text="what makes a second one the same: run_out:15", max_length=64),
                ),
                ("kind", models.CharField(max_length=32)),
                ("data", models.JSONField(default=dict, help_text="facts for the words; no secrets")),
                ("at", models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ("mailed_at", models.DateTimeField(editable=False, null=True)),
                (
                    "void_at",
                    models.DateTimeField(
                        editable=False, help_text="no longer true; terminals and page forget it", null=True
                    ),
                ),
                (
                    "lease",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="notices", to="rental.lease"
                    ),
                ),
            ],
            options={
                "verbose_name": "lease notice",
                "verbose_name_plural": "lease notices",
                "ordering": ["id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("mailed_at__isnull", True)), fields=["at"], name="notice_to_be_mailed"
                    )
                ],
                "constraints": [models.UniqueConstraint(fields=("lease", "key"), name="notice_once_per_key")],
            },
        ),
    ]
