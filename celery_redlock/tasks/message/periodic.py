"""
Messages that a schedule has sent, and how their runs may overlap (`lock_overlap`).
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

#: How long a run that has asked another to stop is the next, in TTLs of the lock. It comes back
#: several times meanwhile; if it does not, its message is lost, or no worker has time for it.
NEXT_RUN_TTLS = 2.0

#: What Celery's beat, from 5.5 on, puts into each message that it sends.
FROM_BEAT = "celery_beat_task"


def tick_of(request: Any, envelope: Envelope) -> Tick | None:
    """Return the tick that a request is for; under `apply()` there was no schedule."""
    return None if request.is_eager else envelope.tick


def overlap_of(request: Any, tick: Tick | None, options: LockOptions) -> str | None:
    """
    Return the overlap policy that a request follows; None where `lock_on_conflict` decides.

    That is where a person or a program has sent it, and where it goes on with a run that has
    begun: a retry or a replacement.
    """
    if options.overlap is None or is_continuation(request) or not _is_scheduled(request, tick):
        return None
    return options.overlap


def runs_unlocked(request: Any, tick: Tick | None, options: LockOptions) -> bool:
    """Tell whether a request is part of a run that may overlap others (`lock_overlap="allow"`)."""
    return options.overlap == "allow" and _is_scheduled(request, tick)


def is_continuation(request: Any) -> bool:
    """Tell whether a request goes on with work that has begun: a retry, or a replacement."""
    return bool(request.retries or request.replaced_task_nesting)


def holder_may_expire(holder: TaskOwner, tick: Tick | None, options: LockOptions) -> bool:
    """
    Tell whether a lock is that of an earlier tick that waits, and may be skipped in the end.

    Then a later tick must not be given up for it (`lock_starting_deadline`).
    """
    if tick is None or options.starting_deadline is None or holder.due_us is None:
        return False
    return holder.role is Role.QUEUED and holder.due_us < tick.due_us


def _is_scheduled(request: Any, tick: Tick | None) -> bool:
    if request.is_eager:
        return False
    return tick is not None or (request.headers or {}).get(FROM_BEAT) is True
