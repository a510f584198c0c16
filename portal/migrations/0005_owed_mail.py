"""Mails that are kept until a server has taken them."""

import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("portal", "0004_tenant_end"),
    ]

    operations = [
        migrations.CreateModel(
            name="OwedMail",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("address", models.EmailField(editable=False, max_length=254)),
                ("subject", models.TextField(editable=False)),
                ("text", models.TextField(editable=False)),
                ("html", models.TextField(blank=True, editable=False)),
                ("at", models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                (
                    "in_hand_at",
                    models.DateTimeField(editable=False, help_text="a worker is sending it", null=True),
                ),
            ],
            options={
                "verbose_name": "mail to be sent",
                "verbose_name_plural": "mails to be sent",
            },
        ),
    ]
