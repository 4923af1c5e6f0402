"""
When an entry of a schedule is due, told the same by all beats.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

from celery.schedules import crontab, solar

from celery_redlock.schedules.crontab import CrontabDueTimes
from celery_redlock.schedules.interval import interval_due_times, is_interval
from celery_redlock.schedules.probing import ProbedDueTimes
from celery_redlock.schedules.solar import SolarDueTimes
from celery_redlock.schedules.timeutils import SECOND, to_us

__all__ = ["DueTimes", "due_times", "is_once", "latest_due", "next_due", "ran_already"]


class DueTimes(Protocol):
    """
    The moments at which a schedule is due, whenever it ran last; in microseconds.

    Attributes:
        slack: how much earlier than this Celery may find it due.
    """

    slack: int

    def latest(self, now: int) -> int | None:
        """Return the last due time that is not after `now`."""

    def after(self, moment: int) -> int | None:
        """Return the first due time after one."""


class ClockedDueTimes:
    """The one moment of a clocked schedule (django-celery-beat)."""

    slack = 0

    def __init__(self, moment: int) -> None:
        self.moment = moment

    def latest(self, now: int) -> int | None:
        """Return the moment, if it has come."""
        return self.moment if self.moment <= now else None

    def after(self, moment: int) -> int | None:
        """Return the moment, if it is after this one."""
        return self.moment if self.moment > moment else None


def due_times(found: Any) -> DueTimes:
    """Return the due times of a schedule, as far as they are the same for every beat."""
    if is_interval(found):
        return interval_due_times(found)
    if isinstance(found, crontab) and _as_in(crontab, found, "remaining_delta"):
        return CrontabDueTimes(found)
    if isinstance(found, solar) and _as_in(solar, found):
        return SolarDueTimes(found)
    if is_once(found):
        return ClockedDueTimes(to_us(found.clocked_time))
    return ProbedDueTimes(found)


def is_once(found: Any) -> bool:
    """Tell whether a schedule is a clocked one, which is due at one moment and never again."""
    return isinstance(getattr(found, "clocked_time", None), datetime)


def _as_in(stock: type, found: Any, *ways: str) -> bool:
    ways = ("remaining_estimate", *ways)
    return all(getattr(type(found), way) is getattr(stock, way) for way in ways)


def latest_due(found: Any, last_run_at: datetime, now: datetime) -> float | None:
    """
    Return when a schedule that is due now was due last, in seconds since the epoch.

    All beats that ask at about the same time get the same answer, whenever they ran it last: of the
    due times that a beat has missed only the last one counts, as in Celery.

    Args:
        found: any schedule.
        last_run_at: when it ran last.
        now: the time.

    Returns:
        None where that cannot be told: a schedule of somebody's own, which counts from its last run
        or says that it is due without having a due time.

    Raises:
        Exception: whatever the schedule raises.
    """
    times = due_times(found)
    due = times.latest(to_us(now))
    if due is None or due < 0:
        return None
    if isinstance(times, ProbedDueTimes) and due <= to_us(last_run_at):
        return None
    return due / SECOND


def next_due(found: Any, due: float) -> float | None:
    """Return when a schedule is due after it was due at `due`, if that can be told."""
    following = due_times(found).after(round(due * SECOND))
    return None if following is None else following / SECOND


def ran_already(found: Any, last_run_at: datetime, now: datetime) -> bool:
    """
    Tell whether a schedule is due now only in Celery's opinion, and has run for its last due time.

    Celery finds a crontab due again, for as long as an hour, where clocks are put back, and a solar
    schedule west of Greenwich, where it takes the local time for UTC.
    """
    times, last = due_times(found), to_us(last_run_at)
    if not isinstance(times, CrontabDueTimes | SolarDueTimes) or last > to_us(now):
        return False
    due = times.latest(to_us(now))
    return due is not None and due <= last + times.slack
