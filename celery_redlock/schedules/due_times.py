"""
When a schedule is due: every beat that asks gets the same answer.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

from celery.schedules import crontab, solar

from celery_redlock.schedules.crontab import CrontabDueTimes
from celery_redlock.schedules.interval import inherits, interval_due_times, is_interval
from celery_redlock.schedules.probing import ProbedDueTimes, SolarDueTimes
from celery_redlock.schedules.timeutils import to_us


class DueTimes(Protocol):
    """
    The moments at which a schedule is due, whatever its last run; in microseconds since the epoch.
    """

    def latest(self, now: int) -> int | None:
        """Return the last due time that is not after `now`."""

    def after(self, moment: int) -> int | None:
        """Return the first due time after `moment`."""


class ClockedDueTimes:
    """The one due time of a clocked schedule (django-celery-beat)."""

    def __init__(self, moment: int) -> None:
        self.moment = moment

    def latest(self, now: int) -> int | None:
        """Return the moment, if it has come."""
        return self.moment if self.moment <= now else None

    def after(self, moment: int) -> int | None:
        """Return the moment, if it is after this one."""
        return self.moment if self.moment > moment else None


def due_times(schedule: Any) -> DueTimes:
    """Return the due times of a schedule, as far as they are the same for every beat."""
    if is_interval(schedule):
        return interval_due_times(schedule)
    if inherits(schedule, crontab, "remaining_estimate", "remaining_delta"):
        return CrontabDueTimes(schedule)
    if inherits(schedule, solar, "remaining_estimate"):
        return SolarDueTimes(schedule)
    if is_clocked(schedule):
        return ClockedDueTimes(to_us(schedule.clocked_time))
    return ProbedDueTimes(schedule)


def is_clocked(schedule: Any) -> bool:
    """Return whether a schedule is a clocked one, which is due at one moment and never again."""
    return isinstance(getattr(schedule, "clocked_time", None), datetime)


def latest_due(schedule: Any, last_run_at: datetime, now: datetime) -> int | None:
    """
    Return the last due time of a schedule that is due now, in microseconds since the epoch.

    All beats that ask at about the same time get the same answer, whatever the last run: of the due
    times that a beat has missed only the last one counts, as in Celery.

    Args:
        schedule: any schedule.
        last_run_at: when it ran last.
        now: the time.

    Returns:
        None if it has no such time: a custom schedule that counts from its last run, or that
        reports itself as due without a due time.

    Raises:
        Exception: whatever the schedule raises.
    """
    times = due_times(schedule)
    due = times.latest(to_us(now))
    if due is None or due < 0:
        return None
    if isinstance(times, ProbedDueTimes) and due <= to_us(last_run_at):
        return None
    return due


def ran_already(schedule: Any, last_run_at: datetime, now: datetime) -> bool:
    """
    Return whether a schedule that Celery reports as due has run for its last due time already.

    Celery reports a crontab as due again, for up to an hour, when clocks are set back, and a solar
    schedule west of Greenwich, where it takes the local time for UTC.
    """
    times, last = due_times(schedule), to_us(last_run_at)
    if not isinstance(times, CrontabDueTimes | SolarDueTimes) or last > to_us(now):
        return False
    due = times.latest(to_us(now))
    return due is not None and due <= last + times.slack
