"""
A schedule's run that finds another at work (`lock_overlap`).
"""

from __future__ import annotations

import time
from dataclasses import replace

from celery.utils.log import get_logger

from celery_redlock.core import Lease
from celery_redlock.errors import LockContended, LockNotAcquired
from celery_redlock.tasks.holding.arrival import Claim
from celery_redlock.tasks.holding.hold import Hold
from celery_redlock.tasks.messages.owners import Owner, Role, read_owner
from celery_redlock.tasks.messages.periodic import TURN
from celery_redlock.tasks.messages.places import companion_place
from celery_redlock.tasks.news import News, tell

__all__ = ["overlap_choice", "replace_holder"]

logger = get_logger(__name__)

#: So long it tries again, in seconds, where several ask at once.
PATIENCE = 0.5


def overlap_choice(claim: Claim, error: LockContended, holder: Owner | None) -> str:
    """
    Return what a schedule's run does whose lock another has.

    Returns:
        `skip`, `requeue`, or `replace`: ask the holder to stop, and be the next.
    """
    # In a split vote nobody holds the lock: were each to give way to the others, none would run.
    if claim.overlap == "queue" or error.split:
        return "requeue"
    if claim.overlap == "forbid":
        return "skip"
    if holder is None or holder.role is Role.FINISHED:
        return "requeue"
    return _choice_beside(claim, holder)


def _choice_beside(claim: Claim, holder: Owner) -> str:
    """Only what is known to be older is replaced, and only what is known to be older gives way."""
    tick = claim.tick
    if tick is not None and holder.due_us is not None and holder.due_us > tick.due_us:
        return "skip"
    if tick is not None:
        mine = tick.due_us
    else:
        episode = claim.envelope.episode
        mine = round((claim.started if episode is None else episode.first_seen) * 1_000_000)
    theirs = holder.since if holder.due_us is None else holder.due_us
    return "replace" if theirs < mine else "requeue"


def replace_holder(hold: Hold, error: LockContended) -> Lease | None:
    """
    Take the place of an older run: of one that is at work by asking it to stop.

    Its lock is left alone. What is taken is only the record beside it. Its next renewal, within a
    third of its TTL, finds that gone; older runs find that a newer one is the next, and are
    skipped.

    Returns:
        The lock, where only another waiting run was in the way.
    """
    hold.claim = claim = _as_the_next(hold.claim, error)
    holder = read_owner(error.holder)
    if holder is None or holder.role is not Role.QUEUED or claim.envelope.reservation is None:
        return None
    # Nobody may be at work any more. Were this one to come back later for the lock, there might
    # always be a newer one by then.
    try:
        return claim.take()
    except LockNotAcquired:
        return None


def _as_the_next(claim: Claim, error: LockContended) -> Claim:
    redlock, options, request = claim.redlock, claim.options, claim.request
    holder = read_owner(error.holder)
    before = claim.envelope.reservation
    keys = [key for key in claim.keys if key in error.keys] or claim.keys
    companions = tuple(companion_place(redlock.node_key(key)) for key in keys)
    if before is not None and not set(companions) <= set(before.node_keys):
        # It is the next for other keys already, and a message carries one reservation.
        for companion in companions:
            redlock.reservations.evict(companion, error.holder or "")
        return claim
    asked = before is not None and holder is not None and holder.role is Role.RUNNING
    previous = before.owner if before is not None and asked else error.holder or ""
    life = TURN * options.ttl
    try:
        reserved = redlock.reservations.reserve(
            companions,
            ttl=life,
            grace=min(life, options.publish_grace),
            label=claim.label_as(Role.QUEUED),
            retry_for=PATIENCE,
            previous=previous,
            previous_until=time.time() + (error.expires_in or 0.0),
        )
    except LockNotAcquired as failure:
        logger.info(
            "Task %s[%s] cannot ask for its lock now, and will again: %s",
            claim.task.name,
            request.id,
            failure,
        )
        return claim
    redlock.reservations.confirm(reserved)
    if holder is not None and not asked:
        _tell_replaced(claim, holder)
    return replace(claim, envelope=replace(claim.envelope, reservation=reserved.reservation))


def _tell_replaced(claim: Claim, holder: Owner) -> None:
    task, request = claim.task, claim.request
    logger.info(
        "Task %s[%s] %s the older run %s on %s",
        task.name,
        request.id,
        "asks to stop" if holder.role is Role.RUNNING else "goes before",
        holder.task_id,
        holder.host,
    )
    tell(News.REPLACED, task, holder.task_id, by=request.id)
