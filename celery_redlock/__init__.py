"""
Celery tasks under a quorum lock with fencing tokens.

`Redlock` and what belongs to it work without Celery; `RedlockTask` and `current_lease` load Celery
when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redlock.core import Lease, Redlock
from celery_redlock.errors import (
    ConfigurationError,
    DuplicateTask,
    InvalidFencingToken,
    LeaseLost,
    LockContended,
    LockKeyError,
    LockNotAcquired,
    QuorumUnavailable,
    RedlockError,
    StaleFencingToken,
)

if TYPE_CHECKING:
    from celery_redlock.tasks import RedlockTask, current_lease

__version__ = "0.1.0"

__all__ = [
    "ConfigurationError",
    "DuplicateTask",
    "InvalidFencingToken",
    "Lease",
    "LeaseLost",
    "LockContended",
    "LockKeyError",
    "LockNotAcquired",
    "QuorumUnavailable",
    "Redlock",
    "RedlockError",
    "RedlockTask",
    "StaleFencingToken",
    "current_lease",
]


def __getattr__(name: str) -> Any:
    if name in ("RedlockTask", "current_lease"):
        from celery_redlock import tasks

        return getattr(tasks, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
