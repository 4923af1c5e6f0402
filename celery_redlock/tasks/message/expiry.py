"""
When a message expires, and the lock that its publisher acquires if no worker takes it over.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from numbers import Real
from typing import Any

from celery.utils.time import maybe_iso8601, maybe_make_aware

from celery_redlock.tasks.border import RequestLike, TaskLike, message_options
from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.message.header_values import END_OF_TIME
from celery_redlock.tasks.message.owner_label import TaskOwner
from celery_redlock.tasks.message.tick import Tick
from celery_redlock.tasks.rules.facts import Role

#: TTL in seconds of a lock that the publisher acquired, until its message has been sent. A
#: publisher that dies in between blocks the key no longer than this.
PUBLISH_GRACE = 10.0

#: Seconds for the difference between the clocks of publisher and worker.
SLACK = 1.0

#: How long a call that has asked another one to stop remains the next, in TTLs of the lock. Workers
#: requeue it several times within this time, unless its message is lost or no worker is free.
NEXT_RUN_TTLS = 2.0


def reservation_end(
    task: TaskLike, lock: LockOptions, options: Mapping[str, Any], now: float, *, continuation: bool
) -> float:
    """
    Return when the reservation of a message expires, in seconds since the epoch.

    An `eta` or `expires` that Celery will refuse counts as not given.

    Args:
        task: the task to be sent.
        lock: its lock options.
        options: the options of the `apply_async` call.
        now: seconds since the epoch.
        continuation: the message continues a run that holds the lock. Then the reservation lasts
            for `lock_queue_ttl` at least, even if the window is shorter.
    """
    end = _due(task, options, now) + lifetime(lock, continuation=continuation)
    expiry = expires_at(task, options, now)
    return end if expiry is None else max(now, min(end, expiry)) + SLACK


def lifetime(lock: LockOptions, *, continuation: bool) -> float:
    """Return for how many seconds the reservation of a message waits for a worker once due."""
    if lock.window is None:
        return lock.queue_ttl
    return max(lock.window, lock.queue_ttl) if continuation else lock.window


def is_continuation(request: RequestLike) -> bool:
    """Return whether a request continues a run that has begun: a retry, or a replacement."""
    return bool(request.retries or request.replaced_task_nesting)


def expires_at(task: TaskLike, options: Mapping[str, Any], now: float) -> float | None:
    """Return when the message of a call expires, in seconds since the epoch, if it does."""
    return _celery_moment(task, {**message_options(task), **options}.get("expires"), now)


def window_end(
    task: TaskLike, lock: LockOptions, options: Mapping[str, Any], now: float
) -> float | None:
    """Return when the `lock_window` of a call ends, in seconds since the epoch, if it has one."""
    return None if lock.window is None else _due(task, options, now) + lock.window


def holder_may_expire(holder: TaskOwner, tick: Tick | None, options: LockOptions) -> bool:
    """
    Return whether the holder is a queued earlier tick, which may still miss its starting deadline.

    A later tick must not be dropped in favour of it (`lock_starting_deadline`).
    """
    if tick is None or options.starting_deadline is None or holder.due_us is None:
        return False
    return holder.role is Role.QUEUED and holder.due_us < tick.due_us


def _due(task: TaskLike, options: Mapping[str, Any], now: float) -> float:
    countdown = options.get("countdown")
    due = _celery_moment(task, countdown if countdown else options.get("eta"), now)
    return max(now, due or 0.0)


def _celery_moment(task: TaskLike, value: Any, now: float) -> float | None:
    """Read a moment as Celery does: seconds from now, a datetime, or ISO 8601 text."""
    try:
        if isinstance(value, Real):
            moment = now + float(value)
            return moment if 0 <= moment <= END_OF_TIME else None
        if isinstance(value, str | datetime):
            return float(maybe_make_aware(maybe_iso8601(value), task.app.timezone).timestamp())
    except (ValueError, OverflowError, TypeError, OSError):
        pass
    return None
