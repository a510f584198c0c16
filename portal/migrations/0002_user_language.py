"""The language mails to a person are written in."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("portal", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="user",
            name="language",
            field=models.CharField(
                blank=True,
                default="",
                help_text="of mails to this person; empty: the portal's own",
                max_length=16,
                verbose_name="language",
            ),
            preserve_default=False,
        ),
    ]
