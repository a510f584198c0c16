"""Stretches of a running lease that are not charged."""

import django.db.models.deletion
from django.db import migrations, models

REASONS = [
    ("starting", "before it was ready"),
    ("ssh_down", "no way in by SSH"),
    ("paused_vram", "paused"),
    ("gpu_lost", "a GPU failed"),
    ("node_silent", "no contact with the node"),
    ("operator_move", "moved by the operator"),
    ("stopping", "being stopped and cleaned"),
]


class Migration(migrations.Migration):
    dependencies = [("rental", "0003_activity")]

    operations = [
        migrations.CreateModel(
            name="UsageGap",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("start", models.DateTimeField()),
                ("end", models.DateTimeField(blank=True, null=True)),
                ("reason", models.CharField(choices=REASONS, max_length=16)),
                ("detail", models.CharField(blank=True, max_length=500)),
                (
                    "lease",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="gaps", to="rental.lease"
                    ),
                ),
            ],
            options={
                "verbose_name": "usage gap",
                "verbose_name_plural": "usage gaps",
                "ordering": ["start", "id"],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("end__isnull", True)), fields=("lease",), name="gap_one_open_per_lease"
                    ),
                    models.UniqueConstraint(fields=("lease", "start"), name="gap_once_per_start"),
                    models.CheckConstraint(
                        condition=models.Q(("end__isnull", True), ("end__gt", models.F("start")), _connector="OR"),
                        name="gap_ends_after_start",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("reason__in", ["ssh_down", "paused_vram", "gpu_lost", "node_silent", "operator_move"])
                        ),
                        name="gap_reason_is_known",
                    ),
                ],
            },
        ),
    ]
