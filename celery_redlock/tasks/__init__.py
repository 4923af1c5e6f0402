"""
The Celery layer: tasks that run under a lock.
"""

from __future__ import annotations

from celery_redlock.tasks.by_hand import pause, resume
from celery_redlock.tasks.config.option_values import (
    SkippedResult,
    TaskLockOptions,
    is_skipped,
    lock_options,
)
from celery_redlock.tasks.hooks import connect
from celery_redlock.tasks.inspection import LockHolder, LockUsage
from celery_redlock.tasks.message.duplicate_result import DuplicateResult, is_duplicate
from celery_redlock.tasks.message.tick import Tick
from celery_redlock.tasks.task import RedlockTask

__all__ = [
    "DuplicateResult",
    "LockHolder",
    "LockUsage",
    "RedlockTask",
    "SkippedResult",
    "TaskLockOptions",
    "Tick",
    "is_duplicate",
    "is_skipped",
    "lock_options",
    "pause",
    "resume",
]

connect()
