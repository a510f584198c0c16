"""What counted as use of a lease."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("rental", "0002_lease_notice")]

    operations = [
        migrations.CreateModel(
            name="LeaseActivity",
            fields=[
                (
                    "lease",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="activity",
                        serialize=False,
                        to="rental.lease",
                    ),
                ),
                ("sampled_at", models.DateTimeField(help_text="the last sample; what comes after is not known")),
                (
                    "uncovered_s",
                    models.FloatField(default=0, help_text="time since active_at that no sample speaks of, s"),
                ),
                (
                    "active_at",
                    models.DateTimeField(help_text="the last use, or unknown stretch; idleness is counted from here"),
                ),
                (
                    "active_signal",
                    models.CharField(blank=True, help_text="what it was; empty: no sample covers it", max_length=16),
                ),
                (
                    "active_known",
                    models.BooleanField(default=True, help_text="false: the signal could not be read"),
                ),
                (
                    "signals",
                    models.JSONField(default=dict, help_text="{signal: {value, state, active_at}} of the last sample"),
                ),
                (
                    "warned_for",
                    models.DateTimeField(help_text="start of the idle stretch that was warned of", null=True),
                ),
                ("warned_at", models.DateTimeField(null=True)),
                (
                    "shadowed_for",
                    models.DateTimeField(
                        help_text=(
                            "start of the idle stretch after which it would have been released (IDLE_MODE=shadow)"
                        ),
                        null=True,
                    ),
                ),
            ],
            options={"verbose_name": "lease activity", "verbose_name_plural": "lease activity"},
        ),
    ]
