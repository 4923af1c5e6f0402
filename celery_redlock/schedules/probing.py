"""
When a schedule of unknown kind is due, found by asking it about times other than the present.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from celery_redlock.schedules.timeutils import SECOND, from_us, to_us

MILLISECOND = SECOND // 1000
#: Not round, so that a schedule that counts from its last run gives different due times for two
#: windows.
FIRST_WINDOW = 1_123_457
GROWTH = 4
WINDOWS = 16
MAX_STEPS = 1000


class ProbedDueTimes:
    """
    The due times of any schedule that has its own, in microseconds, rounded to the millisecond.

    The search runs from two moments in the past. If they lead to two different due times, the
    schedule counts from its last run, and no two beats could agree.
    """

    slack = MILLISECOND

    def __init__(self, schedule: Any) -> None:
        self.schedule = schedule

    def latest(self, now: int) -> int | None:
        """Return the last due time that is not after `now`, if the schedule has one."""
        window, earlier = FIRST_WINDOW, None
        for _ in range(WINDOWS):
            due = self._last_between(now - window, now + self.slack)
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
