"""Invitations, places of tokens, why a tenant is suspended."""

import django.db.models.deletion
import django.db.models.functions.text
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models

import portal.ids


class Migration(migrations.Migration):
    dependencies = [
        ("portal", "0002_user_language"),
    ]

    operations = [
        migrations.AddField(
            model_name="apitoken",
            name="expiry_told_at",
            field=models.DateTimeField(blank=True, editable=False, help_text="its end was announced", null=True),
        ),
        migrations.AddField(
            model_name="apitoken",
            name="last_used_ip",
            field=models.GenericIPAddressField(blank=True, editable=False, null=True, verbose_name="last used from"),
        ),
        migrations.AddField(
            model_name="tenant",
            name="suspension_reason",
            field=models.CharField(
                blank=True, help_text="its members read it", max_length=300, verbose_name="reason of the suspension"
            ),
        ),
        migrations.CreateModel(
            name="Invitation",
            fields=[
                (
                    "id",
                    models.CharField(
                        default=portal.ids.invitation_id,
                        editable=False,
                        max_length=32,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("email", models.EmailField(max_length=254, verbose_name="e-mail address")),
                (
                    "role",
                    models.CharField(
                        choices=[
                            ("owner", "owner"),
                            ("admin", "admin"),
                            ("billing", "billing"),
                            ("member", "member"),
                            ("viewer", "viewer"),
                        ],
                        default="member",
                        max_length=16,
                        verbose_name="role",
                    ),
                ),
                (
                    "language",
                    models.CharField(blank=True, help_text="of the mail", max_length=16, verbose_name="language"),
                ),
                (
                    "round",
                    models.PositiveIntegerField(
                        default=1, help_text="a link that was sent again replaces the one before"
                    ),
                ),
                (
                    "mailed_round",
                    models.PositiveIntegerField(default=0, editable=False, help_text="the last round that was mailed"),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("open", "open"),
                            ("accepted", "accepted"),
                            ("declined", "declined"),
                            ("withdrawn", "withdrawn"),
                        ],
                        default="open",
                        editable=False,
                        max_length=16,
                        verbose_name="state",
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(default=django.utils.timezone.now, editable=False, verbose_name="created"),
                ),
                ("expires_at", models.DateTimeField(verbose_name="expires")),
                ("closed_at", models.DateTimeField(blank=True, editable=False, null=True, verbose_name="answered")),
                (
                    "invited_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="invitations", to="portal.tenant"
                    ),
                ),
            ],
            options={
                "verbose_name": "invitation",
                "verbose_name_plural": "invitations",
                "ordering": ["created_at", "id"],
                "constraints": [
                    models.UniqueConstraint(
                        models.F("tenant"),
                        django.db.models.functions.text.Lower("email"),
                        condition=models.Q(("state", "open")),
                        name="invitation_open_once_per_address",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ["open", "accepted", "declined", "withdrawn"])),
                        name="invitation_state_is_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("role__in", ["owner", "admin", "billing", "member", "viewer"])),
                        name="invitation_role_is_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="TokenPlace",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("digest", models.CharField(editable=False, max_length=64)),
                ("first_used_at", models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                (
                    "token",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="places", to="portal.apitoken"
                    ),
                ),
            ],
            options={
                "verbose_name": "place of a token",
                "verbose_name_plural": "places of tokens",
                "constraints": [models.UniqueConstraint(fields=("token", "digest"), name="token_place_once")],
            },
        ),
    ]
