"""
A schedule's run that finds another at work (`lock_overlap`).
"""

from __future__ import annotations

import time
from dataclasses import replace

from celery.utils.log import get_logger

from celery_redlock.core import Lease
from celery_redlock.errors import LockContended, LockNotAcquired
from celery_redlock.tasks.events import Event, emit
from celery_redlock.tasks.message.node_keys import stop_request_key
from celery_redlock.tasks.message.owner_label import Role, TaskOwner, parse_owner
from celery_redlock.tasks.message.periodic import NEXT_RUN_TTLS
from celery_redlock.tasks.run.lock_request import LockRequest
from celery_redlock.tasks.run.running_lock import RunningLock

__all__ = ["overlap_action", "request_stop"]

logger = get_logger(__name__)

#: So long it tries again, in seconds, where several ask at once.
RETRY_FOR = 0.5


def overlap_action(
    lock_request: LockRequest, error: LockContended, holder: TaskOwner | None
) -> str:
    """
    Return what a schedule's run does whose lock another has.

    Returns:
        `skip`, `requeue`, or `replace`: ask the holder to stop, and be the next.
    """
    # In a split vote nobody holds the lock: were each to give way to the others, none would run.
    if lock_request.overlap == "queue" or error.split:
        return "requeue"
    if lock_request.overlap == "forbid":
        return "skip"
    if holder is None or holder.role is Role.FINISHED:
        return "requeue"
    return _action_by_age(lock_request, holder)


def _action_by_age(lock_request: LockRequest, holder: TaskOwner) -> str:
    """Only what is known to be older is replaced, and only what is known to be older gives way."""
    tick = lock_request.tick
    if tick is not None and holder.due_us is not None and holder.due_us > tick.due_us:
        return "skip"
    if tick is not None:
        mine = tick.due_us
    else:
        wait_history = lock_request.envelope.wait_history
        mine = round(
            (lock_request.started if wait_history is None else wait_history.first_seen) * 1_000_000
        )
    theirs = holder.since if holder.due_us is None else holder.due_us
    return "replace" if theirs < mine else "requeue"


def request_stop(running_lock: RunningLock, error: LockContended) -> Lease | None:
    """
    Take the place of an older run: of one that is at work by asking it to stop.

    Its lock is left alone. What is taken is only the record beside it. Its next renewal, within a
    third of its TTL, finds that gone; older runs find that a newer one is the next, and are
    skipped.

    Returns:
        The lock, where only another waiting run was in the way.
    """
    running_lock.lock_request = lock_request = _reserve_next_run(running_lock.lock_request, error)
    holder = parse_owner(error.holder)
    if (
        holder is None
        or holder.role is not Role.QUEUED
        or lock_request.envelope.reservation is None
    ):
        return None
    # Nobody may be at work any more. Were this one to come back later for the lock, there might
    # always be a newer one by then.
    try:
        return lock_request.acquire()
    except LockNotAcquired:
        return None


def _reserve_next_run(lock_request: LockRequest, error: LockContended) -> LockRequest:
    redlock, options, request = lock_request.redlock, lock_request.options, lock_request.request
    holder = parse_owner(error.holder)
    before = lock_request.envelope.reservation
    keys = [key for key in lock_request.keys if key in error.keys] or lock_request.keys
    stop_request_keys = tuple(stop_request_key(redlock.node_key(key)) for key in keys)
    if before is not None and not set(stop_request_keys) <= set(before.node_keys):
        # It is the next for other keys already, and a message carries one reservation.
        for stop_key in stop_request_keys:
            redlock.reservations.evict(stop_key, error.holder or "")
        return lock_request
    asked = before is not None and holder is not None and holder.role is Role.RUNNING
    previous = before.owner if before is not None and asked else error.holder or ""
    life = NEXT_RUN_TTLS * options.ttl
    try:
        reserved = redlock.reservations.reserve(
            stop_request_keys,
            ttl=life,
            grace=min(life, options.publish_grace),
            label=lock_request.label_as(Role.QUEUED),
            retry_for=RETRY_FOR,
            previous=previous,
            previous_until=time.time() + (error.expires_in or 0.0),
        )
    except LockNotAcquired as failure:
        logger.info(
            "Task %s[%s] cannot ask for its lock now, and will again: %s",
            lock_request.task.name,
            request.id,
            failure,
        )
        return lock_request
    redlock.reservations.confirm(reserved)
    if holder is not None and not asked:
        _emit_replaced(lock_request, holder)
    return replace(
        lock_request, envelope=replace(lock_request.envelope, reservation=reserved.reservation)
    )


def _emit_replaced(lock_request: LockRequest, holder: TaskOwner) -> None:
    task, request = lock_request.task, lock_request.request
    logger.info(
        "Task %s[%s] %s the older run %s on %s",
        task.name,
        request.id,
        "asks to stop" if holder.role is Role.RUNNING else "goes before",
        holder.task_id,
        holder.host,
    )
    emit(Event.REPLACED, task, holder.task_id, by=request.id)
