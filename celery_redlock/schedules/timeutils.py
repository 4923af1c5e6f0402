"""
Moments as whole microseconds since the epoch, the unit of due times.

A float loses the last digits; a wall clock loses an hour a year.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from celery.utils.time import LocalTimezone, timezone

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def to_us(moment: datetime) -> int:
    """Return a moment in microseconds since the epoch; one without a zone is UTC, as in Celery."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - EPOCH) // MICROSECOND


def from_us(at: int) -> datetime:
    """Return a moment as an aware UTC datetime."""
    return EPOCH + timedelta(microseconds=at)


def zone_of(schedule: Any) -> tzinfo | None:
    """Return the zone of a schedule's wall clock; None for the host's own."""
    zone = timezone.get_timezone(schedule.tz)
    # Celery's own class for the host's zone knows no second occurrence of an hour, and older
    # versions of it are wrong west of Greenwich.
    return None if isinstance(zone, LocalTimezone) else zone


def on_clock(at: int, zone: tzinfo | None) -> datetime:
    """Return what a wall clock in `zone` shows, without its zone."""
    return from_us(at).astimezone(zone).replace(tzinfo=None)


def when_clock_shows(wall: datetime, zone: tzinfo | None, *, fold: int = 0) -> int:
    """
    Return when a wall clock in `zone` shows `wall`.

    A time that is skipped when clocks are put forward counts as if they had not been: 02:30 is half
    an hour after 02:00, when they change.

    Args:
        wall: what the clock shows, without its zone.
        zone: the clock's zone; None is the host's own.
        fold: 1 for the second time, when clocks are set back.
    """
    return to_us(wall.replace(tzinfo=zone, fold=fold).astimezone(UTC))
