"""
When a schedule is due whose times are found by asking it about times other than the present.

These are solar schedules, and those of an unknown kind.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from celery_redlock.schedules.timeutils import DAY, HOUR, MINUTE, SECOND, from_us, to_us

MILLISECOND = SECOND // 1000
#: Not round, so that a schedule that counts from its last run gives different due times for two
#: windows.
FIRST_WINDOW = 1_123_457
GROWTH = 4
WINDOWS = 16
MAX_STEPS = 1000

#: No solar event comes twice within this time.
PAUSE = HOUR
#: Beyond the polar circles some events fail to come for months.
MAX_DAYS = 512


class ProbedDueTimes:
    """
    The due times of any schedule that has its own, in microseconds, rounded to the millisecond.

    The search runs from two moments in the past. If they lead to two different due times, the
    schedule counts from its last run, and no two beats could agree.
    """

    def __init__(self, schedule: Any) -> None:
        self.schedule = schedule

    def latest(self, now: int) -> int | None:
        """Return the last due time that is not after `now`, if the schedule has one."""
        window, earlier = FIRST_WINDOW, None
        for _ in range(WINDOWS):
            due = self._last_between(now - window, now + MILLISECOND)
            if due is not None and earlier is not None:
                return due if due == earlier else None
            earlier = due
            window = window * GROWTH + FIRST_WINDOW
        return None

    def after(self, moment: int) -> int | None:
        """Return the first due time after `moment`, if there is any."""
        due = self._next(moment)
        return due if due > moment else None

    def _last_between(self, start: int, end: int) -> int | None:
        found = None
        for _ in range(MAX_STEPS):
            due = self._next(start)
            if due > end:
                return found
            found = due
            if due <= start:
                return found  # such a schedule is due until it has run
            start = due
        return None

    def _next(self, start: int) -> int:
        # In the zone of the schedule's own clock: its due times may depend on the wall time.
        real = self.schedule.now()
        then = from_us(start)
        then = then.replace(tzinfo=None) if real.tzinfo is None else then.astimezone(real.tzinfo)
        due = to_us(next_from(self.schedule, then))
        return (due + MILLISECOND // 2) // MILLISECOND * MILLISECOND


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


def next_from(schedule: Any, start: datetime) -> datetime:
    """
    Return the next due time of a schedule that ran at `start`, as it would answer at `start`.

    Args:
        schedule: any schedule; it is not changed.
        start: with a zone, or without one as the schedule's own clock.

    Raises:
        Exception: whatever the schedule raises.
    """
    clone = object.__new__(type(schedule))
    vars(clone).update(vars(schedule))
    clone.now = lambda: start
    # Added in UTC, because within one zone Python ignores that clocks change.
    aware = start.replace(tzinfo=UTC) if start.tzinfo is None else start.astimezone(UTC)
    due: datetime = aware + clone.remaining_estimate(start)
    return due
