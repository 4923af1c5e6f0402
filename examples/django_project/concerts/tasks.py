"""Booking seats, one customer of a concert after another."""

import time

from celery import shared_task
from django.db import transaction

from celery_redlock import RedlockTask
from concerts.models import Booking, Concert


@shared_task(base=RedlockTask, bind=True, lock_key="concert:{concert_id}")
def book(self, concert_id: int, customer: str, seats: int) -> str:
    """Book seats, and return the outcome."""
    concert = Concert.objects.filter(pk=concert_id)
    with transaction.atomic():
        # Before the read: from here on no earlier holder of the lock can write.
        concert.fenced_claim()
        seats_left = concert.get().seats_left
    if seats_left < seats:
        return "sold out"
    charge(customer)
    with transaction.atomic():
        # The token is that of the lock which this body runs under; one that was overtaken
        # meanwhile gets StaleFencingToken, and nothing is written.
        concert.fenced_update(seats_left=seats_left - seats)
        Booking.objects.create(
            task=self.request.id, concert_id=concert_id, customer=customer, seats=seats
        )
    return "booked"


def charge(customer: str) -> None:
    """Take a while, as payment services do; no transaction is open meanwhile."""
    time.sleep(0.05)
