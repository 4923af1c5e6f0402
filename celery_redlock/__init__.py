"""
Celery tasks under a quorum lock with fencing tokens.

`Redlock`, `AsyncRedlock`, their leases and `current_lease` work without Celery; only the names of
tasks, such as `RedlockTask`, load it. Each name is loaded on first use, so that importing the
package or its errors costs little.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery_redlock.errors import (
    AmbiguousCall,
    ConfigurationError,
    DuplicateTask,
    FencedResourceMissing,
    FenceRecordCorrupt,
    InvalidFencingToken,
    InvalidResourceName,
    LeaseLost,
    LockContended,
    LockKeyError,
    LockNotAcquired,
    LossReason,
    QuorumUnavailable,
    RedlockError,
    StaleFencingToken,
)

if TYPE_CHECKING:
    from celery_redlock.core import Lease, Limit, Rate, Redlock, current_lease, observe
    from celery_redlock.core.aio import AsyncLease, AsyncRedlock
    from celery_redlock.tasks import (
        DuplicateResult,
        LockHolder,
        LockUsage,
        RedlockTask,
        SkippedResult,
        TaskLockOptions,
        Tick,
        is_duplicate,
        is_skipped,
        lock_options,
        pause,
        resume,
    )

__version__ = "0.1.0"

__all__ = [
    "AmbiguousCall",
    "AsyncLease",
    "AsyncRedlock",
    "ConfigurationError",
    "DuplicateResult",
    "DuplicateTask",
    "FenceRecordCorrupt",
    "FencedResourceMissing",
    "InvalidFencingToken",
    "InvalidResourceName",
    "Lease",
    "LeaseLost",
    "Limit",
    "LockContended",
    "LockHolder",
    "LockKeyError",
    "LockNotAcquired",
    "LockUsage",
    "LossReason",
    "QuorumUnavailable",
    "Rate",
    "Redlock",
    "RedlockError",
    "RedlockTask",
    "SkippedResult",
    "StaleFencingToken",
    "TaskLockOptions",
    "Tick",
    "current_lease",
    "is_duplicate",
    "is_skipped",
    "lock_options",
    "observe",
    "pause",
    "resume",
]


_HOME = {
    "AsyncLease": "celery_redlock.core.aio",
    "AsyncRedlock": "celery_redlock.core.aio",
    "DuplicateResult": "celery_redlock.tasks",
    "Lease": "celery_redlock.core",
    "Limit": "celery_redlock.core",
    "LockHolder": "celery_redlock.tasks",
    "LockUsage": "celery_redlock.tasks",
    "Rate": "celery_redlock.core",
    "Redlock": "celery_redlock.core",
    "RedlockTask": "celery_redlock.tasks",
    "SkippedResult": "celery_redlock.tasks",
    "TaskLockOptions": "celery_redlock.tasks",
    "Tick": "celery_redlock.tasks",
    "current_lease": "celery_redlock.core",
    "observe": "celery_redlock.core",
    "is_duplicate": "celery_redlock.tasks",
    "is_skipped": "celery_redlock.tasks",
    "lock_options": "celery_redlock.tasks",
    "pause": "celery_redlock.tasks",
    "resume": "celery_redlock.tasks",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
