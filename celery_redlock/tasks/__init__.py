"""
The Celery layer: tasks that run under a lock.
"""

from __future__ import annotations

from celery_redlock.tasks.base import RedlockTask
from celery_redlock.tasks.holders import LockHolder
from celery_redlock.tasks.messages.duplicates import DuplicateResult
from celery_redlock.tasks.signals import connect

__all__ = ["DuplicateResult", "LockHolder", "RedlockTask"]

connect()
