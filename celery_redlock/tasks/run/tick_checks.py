"""
Ticks that come too late to be run.
"""

from __future__ import annotations

import time

from celery.exceptions import Ignore
from celery.utils.log import get_logger

from celery_redlock.core import Register
from celery_redlock.tasks.events import Event, emit
from celery_redlock.tasks.run.lock_request import LockRequest
from celery_redlock.tasks.run.running_lock import RunningLock
from celery_redlock.tasks.run.skip import leave_marker, send_skip_event
from celery_redlock.tasks.ticks.entry_state import is_superseded

__all__ = ["drop_if_superseded", "skip_if_missed"]

logger = get_logger(__name__)


def skip_if_missed(running_lock: RunningLock) -> bool:
    """
    Tell whether a tick comes after its starting deadline; then it is settled as skipped.

    Raises:
        Ignore: another message of the tick is at work, or was; so it was not missed.
    """
    lock_request = running_lock.lock_request
    late_by = time.time() - lock_request.start_deadline
    if late_by <= 0 or lock_request.tick is None:
        return False
    leave_marker(running_lock)
    task, request = lock_request.task, lock_request.request
    logger.warning(
        "Task %s[%s] is skipped and ends with lock_skip_result %r: entry %r was due at %s, and "
        "lock_starting_deadline = %g s ended %.1f s ago",
        task.name,
        request.id,
        lock_request.options.skip_result,
        lock_request.tick.entry,
        lock_request.tick.due_at.isoformat(),
        lock_request.options.starting_deadline,
        late_by,
    )
    emit(Event.TICK_MISSED, task, request.id, tick=lock_request.tick, late_by=late_by)
    send_skip_event(lock_request)
    return True


def drop_if_superseded(lock_request: LockRequest) -> None:
    """
    End the message of a leader that was superseded, for a tick that its successor answers for.

    Raises:
        Ignore: it is one.
        QuorumUnavailable: too few nodes answered, so nobody can say.
    """
    tick = lock_request.tick
    if tick is None or tick.token is None or not tick.schedule or lock_request.is_continuation:
        return
    if lock_request.options.mode_spec.at_publish and lock_request.envelope.reservation is not None:
        return  # it was sent with a lock, and others may have given way to it
    recorded = Register(lock_request.redlock, tick.schedule).read([tick.entry]).get(tick.entry)
    if recorded is None or not is_superseded(tick, recorded):
        return
    task, request = lock_request.task, lock_request.request
    logger.warning(
        "Task %s[%s] is dropped: it was sent for entry %r, due at %s, by a leader of schedule %s "
        "(token %d) that had been superseded (token %d); its successor answers for this tick",
        task.name,
        request.id,
        tick.entry,
        tick.due_at.isoformat(),
        tick.schedule,
        tick.token,
        recorded.token,
    )
    emit(Event.TICK_SUPERSEDED, task, request.id, tick=tick, newest=recorded.token)
    raise Ignore("a newer leader answers for this tick")
