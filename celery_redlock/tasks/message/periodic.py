"""
Messages of scheduled runs, and messages that continue a run that has begun.
"""

from __future__ import annotations

from celery_redlock.tasks.border import RequestLike
from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.message.owner_label import TaskOwner
from celery_redlock.tasks.message.tick import Tick
from celery_redlock.tasks.rules.facts import Role

#: How long a call that has asked another one to stop remains the next, in TTLs of the lock. Workers
#: requeue it several times within this time, unless its message is lost or no worker is free.
NEXT_RUN_TTLS = 2.0


def tick_of(request: RequestLike, envelope: Envelope) -> Tick | None:
    """Return the tick of a request; None under `apply()`, which no schedule calls."""
    return None if request.is_eager else envelope.tick


def is_continuation(request: RequestLike) -> bool:
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
