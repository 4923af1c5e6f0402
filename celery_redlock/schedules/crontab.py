"""
When a crontab is due, computed from its fields alone.

Celery counts from the last run. Around a change of clocks, and in older versions also across
midnight, its answer depends on that run, so two beats differ.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from itertools import product
from typing import Any

from celery_redlock.schedules.timeutils import on_clock, when_clock_shows, zone_of

#: Years in which the 29th of February falls on each day of the week at least once.
YEARS = 41
ALL_DAY = 24


class CrontabDueTimes:
    """
    The moments at which a wall clock matches a crontab, in microseconds.

    A time that comes twice, when clocks are set back, counts once; but a crontab for every hour is
    due in every hour of that day. A skipped time counts as if it had come.
    """

    #: By how much Celery may report a due time too early, in microseconds.
    slack = 0

    def __init__(self, crontab: Any) -> None:
        self.zone = zone_of(crontab)
        self.hours = tuple(sorted(crontab.hour))
        self.minutes = tuple(sorted(crontab.minute))
        self.weekdays = frozenset(crontab.day_of_week)
        self.days = frozenset(crontab.day_of_month)
        self.months = frozenset(crontab.month_of_year)

    def latest(self, now: int) -> int | None:
        """Return the last due time that is not after `now`; None without one in decades."""
        return max(self._nearest(now, backwards=True), default=None)

    def after(self, moment: int) -> int | None:
        """Return the first due time after a moment; None without one in decades."""
        return min(self._nearest(moment, backwards=False), default=None)

    def _nearest(self, moment: int, *, backwards: bool) -> tuple[int, ...]:
        """Return the nearest due time of the nearest day that has one, and of the day beyond it."""
        found: tuple[int, ...] = ()
        for day in self._days(moment, backwards=backwards):
            moments = self._on(day)
            reached = bisect_right(moments, moment)
            nearest = moments[:reached][-1:] if backwards else moments[reached : reached + 1]
            if found:
                # Where clocks change at midnight, a day's times may be among those of the next.
                return found + nearest
            found = nearest
        return found

    def _days(self, moment: int, *, backwards: bool) -> Iterator[date]:
        """Yield days, beginning one day early (backwards: late), because days may overlap."""
        step = timedelta(days=-1 if backwards else 1)
        day = on_clock(moment, self.zone).date() - step
        for _ in range(366 * YEARS):
            yield day
            day += step

    def _on(self, day: date) -> tuple[int, ...]:
        if (
            day.month not in self.months
            or day.day not in self.days
            or day.isoweekday() % 7 not in self.weekdays
        ):
            return ()
        return _moments(day, self.hours, self.minutes, self.zone)


@lru_cache(maxsize=64)
def _moments(
    day: date, hours: tuple[int, ...], minutes: tuple[int, ...], zone: tzinfo | None
) -> tuple[int, ...]:
    found = set()
    for hour, minute in product(hours, minutes):
        wall = datetime.combine(day, time(hour, minute))
        first = when_clock_shows(wall, zone)
        again = when_clock_shows(wall, zone, fold=1) if len(hours) == ALL_DAY else first
        # The second reading of a skipped time is the earlier one.
        found |= {first, max(first, again)}
    return tuple(sorted(found))
