"""Deleted organisations; mails about a suspension that are still to be sent."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("portal", "0003_accounts_b"),
    ]

    operations = [
        migrations.AddField(
            model_name="tenant",
            name="deleted_at",
            field=models.DateTimeField(
                blank=True, editable=False, help_text="by an owner", null=True, verbose_name="deleted at"
            ),
        ),
        migrations.AddField(
            model_name="tenant",
            name="standing_mail_due_at",
            field=models.DateTimeField(
                blank=True, editable=False, help_text="since when a mail about its suspension is due", null=True
            ),
        ),
    ]
