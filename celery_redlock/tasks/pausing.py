"""
Pauses of lock keys of an app, for its tasks and the programs that send them.
"""

from __future__ import annotations

from datetime import timedelta

from celery import Celery, current_app

from celery_redlock.core import Limit, Rate
from celery_redlock.core.pausing import pause_lock, resume_lock
from celery_redlock.tasks.config.client import client_for


def pause(
    key: str | Limit | Rate, seconds: float | timedelta, *, app: Celery | None = None
) -> dict[str, str]:
    """
    Refuse a lock key to all tasks for a while; those that hold it keep it.

    In that time, calls are accepted, and unique ones still find their duplicates: publishers take
    their locks, but no body begins. Messages that need the key wait, whatever `lock_on_conflict`
    is, and come back when the pause ends. Guarantee, limit and errors as for `Redlock.pause`.

    Args:
        key: the lock key, as `lock_key` makes it; `task.lock_keys(...)` returns those of a call.
        seconds: how long.
        app: the app; by default the current one.

    Returns:
        The nodes that have not confirmed it, each with the reason; empty if all have.
    """
    return pause_lock(client_for(app or current_app), key, seconds)


def resume(key: str | Limit | Rate, *, app: Celery | None = None) -> bool:
    """
    End the pause of a lock key at once, and wake the messages that wait for it.

    Errors as for `Redlock.resume`.

    Args:
        key: the lock key, as for `pause`.
        app: the app; by default the current one.

    Returns:
        Whether it was paused.
    """
    return resume_lock(client_for(app or current_app), key)
