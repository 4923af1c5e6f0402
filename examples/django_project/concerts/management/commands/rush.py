"""More customers than seats, all at once."""

from collections import Counter
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db.models import Sum

from celery_redlock import StaleFencingToken
from concerts.models import Booking, Concert
from concerts.tasks import book

SEATS = 20
CUSTOMERS = 30
TIMEOUT = 120


class Command(BaseCommand):
    """`manage.py rush`: needs the database, the broker, the lock nodes and a worker."""

    help = "Let too many customers book a concert at once, and look at what was sold."

    def handle(self, **_: Any) -> None:
        """Sell a concert out."""
        concert = Concert.objects.create(name="The Locks, live", seats_left=SEATS)
        self.stdout.write(f"{concert.name}: {SEATS} seats; {CUSTOMERS} customers want one each.")
        sent = [book.delay(concert.pk, f"customer {n}", 1) for n in range(CUSTOMERS)]
        outcomes = Counter(result.get(timeout=TIMEOUT) for result in sent)
        self.stdout.write(", ".join(f"{number} {what}" for what, number in outcomes.items()))
        concert.refresh_from_db()
        sold = Booking.objects.filter(concert=concert).aggregate(Sum("seats"))["seats__sum"]
        self.expect(f"{SEATS} seats were sold, and none twice", sold == SEATS)
        self.expect("none are left", concert.seats_left == 0)
        self.expect("the row refuses a token older than the newest", self.is_refused(concert))

    def is_refused(self, concert: Concert) -> bool:
        """Write like an earlier holder of the lock that was frozen and wakes now."""
        late = concert.fencing_token - 1
        try:
            Concert.objects.filter(pk=concert.pk).fenced_update(seats_left=SEATS, token=late)
        except StaleFencingToken as stale:
            self.stdout.write(f"A late write: {stale}")
            return True
        return False

    def expect(self, claim: str, seen: bool) -> None:
        """Print a claim that is true; end with an error if it is not."""
        if not seen:
            raise CommandError(f"NOT SEEN: {claim}")
        self.stdout.write(f"Seen: {claim}")
