"""
Asking a schedule at another time than now.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

__all__ = ["next_from"]


def next_from(schedule: Any, start: datetime) -> datetime:
    """
    Return when a schedule is due that ran at `start`, as it would have said right then.

    Args:
        schedule: any schedule; it is left as it is.
        start: with a zone, or without one as the schedule's own clock.

    Raises:
        Exception: whatever the schedule raises.
    """
    clone = object.__new__(type(schedule))
    vars(clone).update(vars(schedule))
    clone.now = lambda: start
    # Added in UTC: the same zone's hours are not all of one length to Python.
    aware = start.replace(tzinfo=UTC) if start.tzinfo is None else start.astimezone(UTC)
    due: datetime = aware + clone.remaining_estimate(start)
    return due
