"""
When a solar schedule is due, wherever the search for it begins.
"""

from __future__ import annotations

from typing import Any

from celery_redlock.schedules.probing import next_from
from celery_redlock.schedules.timeutils import DAY, HOUR, MINUTE, from_us, to_us

#: No solar event comes twice within this time.
PAUSE = HOUR
#: Beyond the polar circles some events fail to come for months.
MAX_DAYS = 512


class SolarDueTimes:
    """
    The times of a solar event, in microseconds, rounded to the minute.

    The time computed for one event varies by a tenth of a second with the start of the search. So
    it is computed a second time, from a full hour half a day before, and rounded.
    """

    #: Celery may compute an event a little earlier.
    slack = MINUTE

    def __init__(self, solar: Any) -> None:
        self.solar = solar

    def latest(self, now: int) -> int | None:
        """Return the last event that is not after `now`; None without one in a year."""
        end = now + self.slack
        days = 1
        while days <= MAX_DAYS:
            due = self._last_between(end // DAY * DAY - days * DAY, end)
            if due is not None:
                return self._rounded(due)
            days *= 2
        return None

    def after(self, moment: int) -> int | None:
        """Return the first event after a moment that is an event itself."""
        return self._rounded(self._next(moment + PAUSE))

    def _last_between(self, start: int, end: int) -> int | None:
        found = None
        while (due := self._next(start)) <= end:
            found = due
            start = max(start, due) + PAUSE
        return found

    def _rounded(self, found: int) -> int:
        again = self._next((found - DAY // 2) // HOUR * HOUR)
        event = again if abs(again - found) < MINUTE else found
        return (event + MINUTE // 2) // MINUTE * MINUTE

    def _next(self, start: int) -> int:
        # In UTC: Celery takes any other zone's wall clock for UTC here.
        return to_us(next_from(self.solar, from_us(start)))
