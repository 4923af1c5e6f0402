"""
A message that was delivered before.

A broker delivers a message again when it has not been acknowledged in time, or when its connection
was lost, although the first delivery may still be worked on. Both deliveries are one piece of work.
So are the messages that several beats send for one tick of a schedule.
"""

from __future__ import annotations

import time
from typing import NoReturn

from celery.exceptions import Ignore, Reject
from celery.utils.log import get_logger

from celery_redlock.errors import LockContended
from celery_redlock.tasks.events import Event, emit
from celery_redlock.tasks.message.envelope import WaitHistory
from celery_redlock.tasks.message.owner_label import Role, parse_owner
from celery_redlock.tasks.run.lock_request import LockRequest
from celery_redlock.tasks.run.requeue import delay_after, longest_delay, republish, wait_history_of

__all__ = ["end_redelivery", "is_same_tick", "may_start_anyway", "requeue_redelivery"]

logger = get_logger(__name__)

OUTCOME_TEXT = {
    Role.FINISHED: "finished",
    Role.SKIPPED: "been skipped",
    Role.ABANDONED: "ended without an outcome",
    Role.FAILED: "failed without its body",
}


def end_redelivery(lock_request: LockRequest, error: LockContended) -> NoReturn:
    """
    End this delivery of a message, whose mark an earlier delivery has.

    Always with `Ignore`, which leaves the result, callbacks and chord part to the other delivery.

    Raises:
        Ignore: the other has finished; or it still runs, and this one was put back, because the
            other may yet die.
        Reject: it could not be put back, and goes back to the broker.
    """
    task, request = lock_request.task, lock_request.request
    other = parse_owner(error.holder)
    if other is not None and other.role.is_over:
        logger.info(
            "Task %s[%s] %s after it had %s on %s; this delivery is ignored",
            task.name,
            request.id,
            _arrival_text(lock_request),
            OUTCOME_TEXT.get(other.role, f"been {other.role}"),
            other.host,
        )
        emit(Event.REDELIVERY_IGNORED, task, request.id, finished_by=other.host)
        if lock_request.envelope.reservation is not None:
            # Of another beat than the one that ran, which has taken its own lock over; or used up,
            # and given back late on a node by a copy that had failed to take it.
            lock_request.redlock.reservations.cancel(lock_request.envelope.reservation)
        raise Ignore("this message's task has finished already")
    requeue_redelivery(lock_request, error)


def may_start_anyway(lock_request: LockRequest, error: LockContended) -> bool:
    """
    Tell whether a message of a tick may begin although the tick's mark says that it is over.

    What is over for the other messages of a tick need not be for this one: it has begun, and the
    other one was late or found another run at work; or its own body has ended without an outcome
    before the broker sent it again.
    """
    other = parse_owner(error.holder)
    if other is None:
        return False
    # The messages of several leaders for one tick have one task id, and each a nonce of its own.
    is_own = other.is_of(lock_request.request.id) and other.nonce == lock_request.envelope.nonce
    if other.role is Role.SKIPPED:
        return lock_request.may_have_begun and not is_own
    return other.role is Role.ABANDONED and is_own


def is_same_tick(lock_request: LockRequest, error: LockContended) -> bool:
    """Tell whether another message of the same tick has the lock and waits for a worker."""
    other = parse_owner(error.holder)
    if other is None or lock_request.tick_id is None or error.split:
        return False
    return other.role is Role.QUEUED and other.tick_id == lock_request.tick_id


def requeue_redelivery(lock_request: LockRequest, error: LockContended) -> NoReturn:
    """
    Put a message back until the other one of its tick, or its earlier delivery, has ended.

    Raises:
        Ignore: it was put back, or could not be and its message is acknowledged already.
        Reject: it could not be put back, and goes back to the broker.
    """
    task, request = lock_request.task, lock_request.request
    other = parse_owner(error.holder)
    runs = other is not None and other.role is Role.RUNNING
    earlier = wait_history_of(lock_request)
    # Not counted as waiting for a lock: the other may run for as long as it likes.
    wait_history = WaitHistory(
        first_seen=time.time(), requeues=earlier.requeues, retries=earlier.retries
    )
    # It has to come back while the other's mark still tells that it has finished.
    longest = min(longest_delay(task.app), lock_request.options.dedupe_window / 2)
    delay = delay_after(wait_history.requeues, longest)
    try:
        # A tick that has begun is not late any more, whichever of its messages brings it to an end.
        republish(lock_request, wait_history, delay, begun=runs and lock_request.tick is not None)
    except Exception as exc:
        if task.acks_late:
            logger.error(  # noqa: TRY400  # what went wrong is the broker's
                "Task %s[%s] %s and could not be put back (%r); its message is "
                "returned to the broker.",
                task.name,
                request.id,
                _arrival_text(lock_request),
                exc,
            )
            raise Reject(exc, requeue=True) from exc
        logger.error(  # noqa: TRY400
            "Task %s[%s] %s and could not be put back (%r); only the earlier "
            "delivery remains, which holds its lock.",
            task.name,
            request.id,
            _arrival_text(lock_request),
            exc,
        )
        raise Ignore("an earlier delivery of this message runs") from exc
    logger.info(
        "Task %s[%s] %s while %s; this delivery is put back for %.1f s: %s",
        task.name,
        request.id,
        _arrival_text(lock_request),
        "it runs" if runs else "another message of it waits",
        delay,
        error,
    )
    emit(Event.REDELIVERY_REQUEUED, task, request.id, delay=delay, error=error)
    raise Ignore("an earlier delivery of this message runs")


def _arrival_text(lock_request: LockRequest) -> str:
    tick = lock_request.tick
    if tick is None:
        return "was delivered again"
    return f"came once more for entry {tick.entry!r}, due at {tick.due_at.isoformat()},"
