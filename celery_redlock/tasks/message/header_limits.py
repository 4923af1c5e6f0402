"""
Limits of the moments in a header.

Any process with access to the queue can write headers, and clocks may be wrong. A moment that
decides how long a key stays on the nodes is therefore limited by the task's own options.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from celery_redlock._log import event_logger
from celery_redlock.tasks.border import RequestLike, TaskLike
from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.message.expiry import NEXT_RUN_TTLS, is_continuation, lifetime
from celery_redlock.tasks.message.owner_label import label_id
from celery_redlock.tasks.message.tick import LONGEST_INTERVAL

logger = event_logger(__name__)

#: Largest believable difference between the clocks of two hosts, in seconds.
MAX_CLOCK_SKEW = 86_400.0


def within_bounds(
    envelope: Envelope, task: TaskLike, request: RequestLike, options: LockOptions
) -> Envelope:
    """
    Return the envelope without values that are out of bounds, and log a warning about these.

    Args:
        envelope: read from the request's header.
        task: the task.
        request: its request, which is due.
        options: the task's lock options.
    """
    dropped, now = [], time.time()
    for field, moment, latest, changes in _limits(envelope, request, options, now):
        if moment is not None and moment > latest:
            dropped.append(f"{field}, {moment - now:.0f} s from now (at most {latest - now:.0f} s)")
            envelope = replace(envelope, **changes)
    if dropped:
        logger.warning(
            "header-values-ignored",
            "Task %(task)s[%(task_id)s] has header values that are out of bounds and are ignored: "
            "%(reason)s. Its publisher runs other code or has a wrong clock, or another program "
            "writes into its queue.",
            task=task.name,
            task_id=label_id(str(request.id)),
            reason="; ".join(dropped),
        )
    wait_history = envelope.wait_history
    if wait_history is None or wait_history.first_seen <= now:
        return envelope
    return replace(envelope, wait_history=replace(wait_history, first_seen=now))


def with_bounded_lifetime(
    envelope: Envelope, request: RequestLike, options: LockOptions
) -> Envelope:
    """Return the envelope with a reservation that lasts no longer than the options allow."""
    lock = envelope.reservation
    latest = time.time() + _longest_lifetime(request, options)
    if lock is None or lock.expires_at <= latest:
        return envelope
    return replace(envelope, reservation=replace(lock, expires_at=latest))


def _longest_lifetime(request: RequestLike, options: LockOptions) -> float:
    """Return for how many seconds a due message may keep its reservation."""
    life = lifetime(options, continuation=is_continuation(request))
    return max(life, NEXT_RUN_TTLS * options.ttl) if options.stops else life


def _limits(
    envelope: Envelope, request: RequestLike, options: LockOptions, now: float
) -> Iterator[tuple[str, float | None, float, dict[str, Any]]]:
    """Yield each moment with its upper limit and the changes to make beyond it."""
    latest, lock, tick = now + MAX_CLOCK_SKEW, envelope.reservation, envelope.tick
    if lock is not None:
        life = _longest_lifetime(request, options)
        shorter = replace(lock, expires_at=now + life)
        yield "lock.expires_at", lock.expires_at, latest + life, {"reservation": shorter}
    if envelope.window_until is not None:
        window = math.inf if options.window is None else options.window
        yield "window_until", envelope.window_until, latest + window, {"window_until": None}
    yield "sent", envelope.sent, latest, {"sent": None}
    if envelope.wait_history is not None:
        yield "first_seen", envelope.wait_history.first_seen, latest, {"wait_history": None}
    if tick is not None:
        endless = replace(tick, until=None)
        yield "tick.until", tick.until, tick.due + LONGEST_INTERVAL, {"tick": endless}
        yield "tick.due", tick.due, latest, {"tick": None}
