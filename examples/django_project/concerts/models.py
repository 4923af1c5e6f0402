"""A concert with few seats, and the bookings."""

from django.db import models

from celery_redlock.fencing.django import FencedModel


class Concert(FencedModel):
    """One more column is the fence: the newest token that has written a row."""

    name = models.CharField(max_length=80)
    seats_left = models.PositiveIntegerField()


class Booking(models.Model):
    """Booked seats, under the id of the task that booked them."""

    task = models.UUIDField(primary_key=True)
    concert = models.ForeignKey(Concert, on_delete=models.CASCADE)
    customer = models.CharField(max_length=80)
    seats = models.PositiveIntegerField()
