"""
A schedule's run that finds another at work (`lock_overlap`).
"""

from __future__ import annotations

import time

from celery.utils.log import get_logger

from celery_redlock.errors import LockContended
from celery_redlock.tasks.arrival import Claim
from celery_redlock.tasks.news import News, tell
from celery_redlock.tasks.owners import Owner, Role, read_owner
from celery_redlock.tasks.places import companion_place

__all__ = ["ask_to_stop", "overlap_choice"]

logger = get_logger(__name__)


def overlap_choice(claim: Claim, error: LockContended, holder: Owner | None) -> str:
    """
    Return what a schedule's run does whose lock another has.

    Returns:
        `skip`, `requeue`, or `replace`: ask the holder to stop, and wait for its end.
    """
    # In a split vote nobody holds the lock: were each to give way to the others, none would run.
    if claim.overlap == "queue" or error.split:
        return "requeue"
    if claim.overlap == "forbid":
        return "skip"
    if holder is None or holder.role is not Role.RUNNING:
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


def ask_to_stop(claim: Claim, error: LockContended) -> None:
    """
    Ask a running body to stop, and leave its lock alone.

    What is deleted is only the record beside the lock. Its holder's next renewal, within a third
    of its TTL, finds that gone.
    """
    task, request = claim.task, claim.request
    owner = error.holder or ""
    holder = read_owner(owner)
    keys = [key for key in claim.keys if key in error.keys] or claim.keys
    places = map(claim.redlock.place, keys)
    asked = [claim.redlock.evict(companion_place(place), owner) for place in places]
    if holder is None or not any(asked):
        return  # it has been asked before, or too few nodes answered; then it is asked again
    logger.info(
        "Task %s[%s] asks the older run %s on %s, which has been at work for %.1f s, to stop",
        task.name,
        request.id,
        holder.task_id,
        holder.host,
        max(0.0, time.time() - holder.since / 1_000_000),
    )
    tell(News.REPLACED, task, holder.task_id, by=request.id)
