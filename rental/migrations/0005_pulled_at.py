"""When the image of an order last came further."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("rental", "0004_gaps")]

    operations = [
        migrations.AddField(
            model_name="lease",
            name="pulled_at",
            field=models.DateTimeField(editable=False, null=True, help_text="its image last came further"),
        ),
    ]
