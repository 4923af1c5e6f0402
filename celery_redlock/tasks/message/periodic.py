"""
Scheduled runs: whether a message is one, and which `lock_overlap` policy applies to it.
"""

from __future__ import annotations

from typing import Any

from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.message.owner_label import Role, TaskOwner
from celery_redlock.tasks.message.tick import Tick

__all__ = [
    "NEXT_RUN_TTLS",
    "holder_may_expire",
    "is_continuation",
    "overlap_of",
    "runs_unlocked",
    "tick_of",
]

#: How long a run that has requested another one to stop is the next, in TTLs of the lock. Workers
#: requeue it several times meanwhile; otherwise its message is lost, or no worker is free.
NEXT_RUN_TTLS = 2.0

#: The header that Celery's beat, from 5.5 on, sets in each message.
FROM_BEAT = "celery_beat_task"


def tick_of(request: Any, envelope: Envelope) -> Tick | None:
    """Return the tick of a request; None under `apply()`, which no schedule calls."""
    return None if request.is_eager else envelope.tick


def overlap_of(request: Any, tick: Tick | None, options: LockOptions) -> str | None:
    """
    Return the overlap policy of a request; None if `lock_on_conflict` applies.

    That is the case for unscheduled calls, and for a retry or replacement, which continues a run
    that has begun.
    """
    if options.overlap is None or is_continuation(request) or not _is_scheduled(request, tick):
        return None
    return options.overlap


def runs_unlocked(request: Any, tick: Tick | None, options: LockOptions) -> bool:
    """Return whether a request is a scheduled run that may overlap (`lock_overlap="allow"`)."""
    return options.overlap == "allow" and _is_scheduled(request, tick)


def is_continuation(request: Any) -> bool:
    """Return whether a request continues a run that has begun: a retry, or a replacement."""
    return bool(request.retries or request.replaced_task_nesting)


def holder_may_expire(holder: TaskOwner, tick: Tick | None, options: LockOptions) -> bool:
    """
    Return whether the holder is a queued earlier tick, which may still miss its starting deadline.

    A later tick must not be dropped in favour of it (`lock_starting_deadline`).
    """
    if tick is None or options.starting_deadline is None or holder.due_us is None:
        return False
    return holder.role is Role.QUEUED and holder.due_us < tick.due_us


def _is_scheduled(request: Any, tick: Tick | None) -> bool:
    if request.is_eager:
        return False
    return tick is not None or (request.headers or {}).get(FROM_BEAT) is True
