"""A schedule of somebody's own, such as applications write where a crontab is too coarse."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from celery.schedules import BaseSchedule, schedstate


class Aligned(BaseSchedule):
    """Due at every multiple of so many seconds on the beat's own clock."""

    def __init__(self, seconds: int, **more: Any) -> None:
        super().__init__(**more)
        self.seconds = seconds

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        step = last_run_at.timestamp() // self.seconds + 1
        return timedelta(seconds=step * self.seconds - self.now().timestamp())

    def is_due(self, last_run_at: datetime) -> schedstate:
        left = self.remaining_estimate(last_run_at).total_seconds()
        if left > 0:
            return schedstate(is_due=False, next=left)
        return schedstate(is_due=True, next=self.remaining_estimate(self.now()).total_seconds())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Aligned) and self.seconds == other.seconds

    def __hash__(self) -> int:
        return hash(self.seconds)

    def __reduce__(self) -> tuple[type, tuple[int]]:
        return type(self), (self.seconds,)
