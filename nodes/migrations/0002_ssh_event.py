import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("nodes", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="SshEvent",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "event_id",
                    models.UUIDField(editable=False, help_text="as the gateway gave it", verbose_name="id"),
                ),
                ("lease_ref", models.CharField(max_length=43, verbose_name="lease")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("login", "logged in"),
                            ("login_refused", "login refused"),
                            ("session_start", "session began"),
                            ("session_end", "session ended"),
                            ("forward", "port forwarded"),
                        ],
                        max_length=16,
                        verbose_name="what",
                    ),
                ),
                (
                    "at",
                    models.DateTimeField(help_text="when we heard of it, less its age there", verbose_name="when"),
                ),
                ("peer", models.CharField(blank=True, max_length=64, verbose_name="from")),
                (
                    "key",
                    models.CharField(blank=True, help_text="fingerprint, SHA256:…", max_length=80, verbose_name="key"),
                ),
                ("session", models.CharField(blank=True, max_length=64, verbose_name="session")),
                ("detail", models.CharField(blank=True, max_length=200, verbose_name="detail")),
                ("bytes_in", models.BigIntegerField(default=0, verbose_name="bytes in")),
                ("bytes_out", models.BigIntegerField(default=0, verbose_name="bytes out")),
                (
                    "node",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="ssh_events", to="nodes.node"
                    ),
                ),
            ],
            options={
                "verbose_name": "SSH event",
                "verbose_name_plural": "SSH events",
                "ordering": ["-at", "-id"],
                "indexes": [
                    models.Index(fields=["lease_ref", "-at"], name="ssh_event_of_lease"),
                    models.Index(fields=["at"], name="ssh_event_by_age"),
                ],
                "constraints": [models.UniqueConstraint(fields=("node", "event_id"), name="ssh_event_once")],
            },
        ),
    ]
