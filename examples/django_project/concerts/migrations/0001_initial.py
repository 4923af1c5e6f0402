"""The tables of concerts and bookings."""

import django.db.models.deletion
from django.db import migrations, models

import celery_redlock.fencing.django


class Migration(migrations.Migration):
    """As `makemigrations` wrote it."""

    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Concert",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "fencing_token",
                    celery_redlock.fencing.django.FencingTokenField(default=0, editable=False),
                ),
                ("name", models.CharField(max_length=80)),
                ("seats_left", models.PositiveIntegerField()),
            ],
            options={"abstract": False},
        ),
        migrations.CreateModel(
            name="Booking",
            fields=[
                ("task", models.UUIDField(primary_key=True, serialize=False)),
                ("customer", models.CharField(max_length=80)),
                ("seats", models.PositiveIntegerField()),
                (
                    "concert",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="concerts.concert"
                    ),
                ),
            ],
        ),
    ]
