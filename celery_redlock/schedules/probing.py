"""
When a schedule of unknown kind is due, found out by asking it.
"""

from __future__ import annotations

from typing import Any

from celery_redlock.schedules.frozen import next_from
from celery_redlock.schedules.timeutils import SECOND, from_us, to_us

__all__ = ["ProbedDueTimes"]

MILLISECOND = SECOND // 1000
#: The windows are no round times: from two of them a schedule that counts from its last run does
#: not arrive at one moment.
FIRST_WINDOW = 1_123_457
GROWTH = 4
WINDOWS = 16
MAX_STEPS = 1000


class ProbedDueTimes:
    """
    The due times of any schedule that has some of its own, in microseconds to the millisecond.

    It is walked along from two moments in the past. Where that leads to two different due times, it
    counts from its last run, and no two beats could agree.
    """

    slack = MILLISECOND

    def __init__(self, schedule: Any) -> None:
        self.schedule = schedule

    def latest(self, now: int) -> int | None:
        """Return the last due time that is not after `now`, if the schedule has such a thing."""
        window, earlier = FIRST_WINDOW, None
        for _ in range(WINDOWS):
            due = self._last_between(now - window, now + self.slack)
            if due is not None and earlier is not None:
                return due if due == earlier else None
            earlier = due
            window = window * GROWTH + FIRST_WINDOW
        return None

    def after(self, moment: int) -> int | None:
        """Return the first due time after one, if there is any."""
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
                return found  # it is due for as long as it has not run
            start = due
        return None

    def _next(self, start: int) -> int:
        # In the zone of its own clock, whose wall time may be what it looks at.
        real = self.schedule.now()
        then = from_us(start)
        then = then.replace(tzinfo=None) if real.tzinfo is None else then.astimezone(real.tzinfo)
        due = to_us(next_from(self.schedule, then))
        return (due + MILLISECOND // 2) // MILLISECOND * MILLISECOND
