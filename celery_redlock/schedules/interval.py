"""
When an interval is due, on a grid that all beats share.

Celery counts an interval from its last run, so no two beats agree on its due times. On a grid that
begins with the epoch it is due at the same moments in every beat.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, tzinfo
from typing import Any

from celery.schedules import schedstate, schedule

from celery_redlock.schedules.timeutils import (
    DAY,
    EPOCH,
    HOUR,
    MICROSECOND,
    MINUTE,
    SECOND,
    on_clock,
    to_us,
    when_clock_shows,
    zone_of,
)


class IntervalDueTimes:
    """Every whole multiple of an interval since the epoch; all times in microseconds."""

    def __init__(self, step: int) -> None:
        self.step = step

    def latest(self, now: int) -> int:
        """Return the last point that is not after `now`."""
        return now // self.step * self.step

    def after(self, moment: int) -> int:
        """Return the first point after a moment."""
        return self.latest(moment) + self.step


class ClockIntervalDueTimes(IntervalDueTimes):
    """A grid on the full hours, minutes or seconds of a zone, for `relative` intervals."""

    def __init__(self, step: int, unit: int, zone: tzinfo | None) -> None:
        super().__init__(step // unit * unit)
        self.unit = unit
        self.zone = zone

    def latest(self, now: int) -> int:
        """Return the last point that is not after `now`."""
        # Only the part of the zone's offset below a full unit: with the whole offset, a grid of
        # several hours would jump when clocks are put forward or back.
        shift = (to_us(on_clock(now, self.zone)) - now) % self.unit
        return (now + shift) // self.step * self.step - shift


class DayIntervalDueTimes(IntervalDueTimes):
    """Every n-th midnight of a zone, for `relative` intervals of n days."""

    def __init__(self, step: int, zone: tzinfo | None) -> None:
        self.days = step // DAY
        super().__init__(self.days * DAY)
        self.zone = zone

    def latest(self, now: int) -> int:
        """Return the last point that is not after `now`."""
        return self._midnight(self._day(now))

    def after(self, moment: int) -> int:
        """Return the first point after a moment."""
        return self._midnight(self._day(moment) + timedelta(days=self.days))

    def _day(self, moment: int) -> date:
        day = on_clock(moment, self.zone).date()
        return day - timedelta(days=(day - EPOCH.date()).days % self.days)

    def _midnight(self, day: date) -> int:
        return when_clock_shows(datetime.combine(day, time()), self.zone)


class GridSchedule(schedule):  # type: ignore[misc]  # Celery is untyped
    """
    An interval that is due at the points of a grid instead of a fixed time after its last run.

    It equals the stock schedule that it was made from and is pickled as that one, so that a beat
    without this package can read the same schedule file.
    """

    def __init__(self, stock: Any) -> None:
        super().__init__(stock.run_every, stock.relative, stock.nowfun, stock._app)
        self.stock = stock

    @property
    def grid(self) -> IntervalDueTimes:
        """The moments at which it is due."""
        return interval_due_times(self)

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        """Return the time until the first point after the last run; negative if it has passed."""
        now, last, grid = to_us(self.now()), to_us(last_run_at), self.grid
        # A last run in the future comes from another clock; the schedule does not wait for it.
        is_plausible = last <= now + grid.step
        due = grid.after(last) if is_plausible else grid.latest(now)
        return (due - now) * MICROSECOND

    def is_due(self, last_run_at: datetime) -> Any:
        """Return Celery's `(is_due, seconds until the next check)`."""
        remaining = self.remaining_estimate(last_run_at)
        if remaining > timedelta(0):
            return schedstate(is_due=False, next=remaining.total_seconds())
        now = to_us(self.now())
        return schedstate(is_due=True, next=(self.grid.after(now) - now) / SECOND)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle and copy as the stock schedule."""
        return self.stock.__reduce_ex__(protocol)


def interval_due_times(interval: Any) -> IntervalDueTimes:
    """
    Return the grid of an interval.

    A `relative` one is rounded to its unit on the wall clock, as Celery rounds it.
    """
    step = interval.run_every // MICROSECOND
    units = [unit for unit in (DAY, HOUR, MINUTE, SECOND) if step >= unit]
    if not interval.relative or not units:
        return IntervalDueTimes(step)
    if units[0] == DAY:
        return DayIntervalDueTimes(step, zone_of(interval))
    return ClockIntervalDueTimes(step, units[0], zone_of(interval))


def is_interval(value: Any) -> bool:
    """Return whether a schedule is an interval that overrides no method that Celery calls."""
    if isinstance(value, GridSchedule):
        return True
    is_stock = inherits(value, schedule, "is_due", "remaining_estimate", "now", "__eq__")
    return is_stock and value.run_every >= MICROSECOND


def inherits(value: Any, stock: type, *methods: str) -> bool:
    """Return whether a schedule is of a class of Celery's and overrides none of these methods."""
    return isinstance(value, stock) and all(
        getattr(type(value), name) is getattr(stock, name) for name in methods
    )


def on_grid(value: Any) -> GridSchedule | None:
    """Return an interval as a `GridSchedule`; None if it is one already, or no interval."""
    if isinstance(value, GridSchedule) or not is_interval(value):
        return None
    return GridSchedule(value)
