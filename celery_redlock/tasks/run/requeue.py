"""
Requeueing a message whose lock cannot be acquired now.

The message is made anew from the request, so everything that Celery carries in it stays: id, chord,
chain, group, links, expiry, limits, stamps and priority. Our header, never the task's `retries`,
counts its requeues and its waiting time, and carries on its identity and its lock.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NoReturn

from celery.exceptions import Reject
from kombu.exceptions import EncodeError

from celery_redlock._log import event_logger
from celery_redlock.core.failures import Refusal
from celery_redlock.core.waiting import described, limited
from celery_redlock.errors import LockContended, LockNotAcquired, QuorumUnavailable
from celery_redlock.protocol.keys import QUORUM, given_back, in_header, pause_of
from celery_redlock.tasks.border import AppLike, RequestLike, ignores_result, state_of
from celery_redlock.tasks.events import Event, MonitorEvent, emit, send_monitor_event
from celery_redlock.tasks.message.envelope import HEADER, WaitHistory, bounded_waits_for, send_again
from celery_redlock.tasks.message.in_words import lock_key_of, reason_of
from celery_redlock.tasks.run.lock_request import LockRequest
from celery_redlock.tasks.run.shown_end import Requeued, store_wait

logger = event_logger(__name__)

#: Shortest delay in seconds: by then the run that requeues a message has left its process.
SHORTEST_DELAY = 0.25
FIRST_DELAY = 1.0
#: Longest delay in seconds, after which a message tries again although no release has woken it.
LONGEST_DELAY = 60.0
#: The same where a worker keeps the message, and looks at its keys in between.
LONGEST_KEPT = 900.0
#: Share of the time left until its deadline after which a message returns.
LAST_TRY_SHARE = 0.9

#: Seconds for which a worker may keep a message unacknowledged, if no setting names them: half an
#: hour with RabbitMQ, an hour with Redis.
_UNACKNOWLEDGED_FOR = 1800.0


def wait_history_of(lock_request: LockRequest) -> WaitHistory:
    """Return how long and how often a request has waited; from its arrival if it is new."""
    request, wait_history = lock_request.request, lock_request.envelope.wait_history
    # The body may have run for hours before its worker died; that was not waiting.
    redelivered = (request.delivery_info or {}).get("redelivered")
    if wait_history is None or redelivered or wait_history.retries != request.retries:
        return WaitHistory(first_seen=lock_request.started, requeues=0, retries=request.retries)
    return wait_history


def strip_header(request: RequestLike) -> None:
    """Keep this message's header out of the messages that the body sends from its request."""
    headers = request.headers
    if headers and HEADER in headers:
        request.headers = {name: value for name, value in headers.items() if name != HEADER}
        request.__dict__.pop(HEADER, None)


def remaining_wait(lock_request: LockRequest) -> float:
    """Return for how many seconds the message may still wait (`lock_give_up_after`)."""
    waited = wait_history_of(lock_request).waited(time.time())
    return max(0.0, limited(lock_request.options.give_up_after) - waited)


def requeue(lock_request: LockRequest, error: LockNotAcquired) -> NoReturn:
    """Publish the task again, to run later, and end this run with `Requeued`."""
    task, request = lock_request.task, lock_request.request
    now = time.time()
    wait_history = wait_history_of(lock_request)
    left = remaining_wait(lock_request)
    waits_for = _waits_for(lock_request, error)
    delay = _delay(lock_request, wait_history, error, now, is_registered=bool(waits_for))
    delay = min(delay, max(SHORTEST_DELAY, left))
    store_wait(task, request, error, ignored=bool(ignores_result(task, request)))
    try:
        republish(lock_request, wait_history, delay, waits_for=waits_for)
    except Exception as exc:
        _not_published(lock_request, error, exc)
    reason = reason_of(error)
    state_of(request).last_words = partial(
        logger.info,
        "task-requeued",
        "Task %(task)s[%(task_id)s] is requeued %(until)sfor up to %(seconds).1f s, "
        "and gives up if it has no lock in %(seconds_left).0f s (requeue %(requeues)d): %(reason)s",
        task=task.name,
        task_id=request.id,
        until="until its lock is free, " if waits_for else "",
        seconds=delay,
        seconds_left=left,
        requeues=wait_history.requeues + 1,
        reason=reason,
    )
    emit(
        Event.REQUEUED,
        task,
        request.id,
        delay=delay,
        requeues=wait_history.requeues + 1,
        error=error,
    )
    send_monitor_event(
        MonitorEvent.WAITING,
        task,
        request,
        key=lock_key_of(getattr(error, "key", None)),
        holder=getattr(error, "holder", None),
        reason=reason,
        delay=delay,
    )
    raise Requeued(reason, delay)


def _delay(
    lock_request: LockRequest,
    wait_history: WaitHistory,
    error: LockNotAcquired,
    now: float,
    *,
    is_registered: bool,
) -> float:
    refusal = Refusal.of(error) if isinstance(error, LockContended) else None
    if refusal is not None and refusal.frees_later:
        # The nodes have given the message this turn, and nothing makes it earlier.
        turn = max(SHORTEST_DELAY, refusal.expires_in or 0.0)
        if refusal.is_paused:
            # Messages that wait for the same pause must not come back together.
            turn += delay_after(0, FIRST_DELAY)
        if refusal.split:
            # Its turn had come, but nodes granted different slots: another slot may be free.
            turn = delay_after(wait_history.requeues, turn)
        visible = _visible(lock_request, unset=_UNACKNOWLEDGED_FOR)
        return min(turn, visible, _until_deadline(lock_request, now))
    is_held = is_registered and isinstance(error, LockContended) and not error.split
    # A key that is handed over to a message is never free for others, and wakes no waiter.
    is_released = is_held and lock_request.envelope.reservation is None
    is_kept = is_released and _is_kept_by_a_worker(lock_request.task.app)
    longest = _longest_delay(lock_request, now, is_kept=is_kept)
    if isinstance(error, QuorumUnavailable) and error.available_in is not None:
        # Messages that wait for the same nodes must not come back together.
        return min(longest, error.available_in + delay_after(0, longest))
    if is_kept:
        return random.uniform(longest / 2, longest)  # noqa: S311  # spreads load, protects nothing
    return delay_after(wait_history.requeues, longest)


def _is_kept_by_a_worker(app: AppLike) -> bool:
    """Return whether a worker fetches each message, and keeps it until its ETA."""
    if app.conf.get("worker_eta_task_limit"):
        return False
    # RabbitMQ itself delays messages of quorum queues.
    arguments = (queue.queue_arguments or {} for queue in app.amqp.queues.values())
    return not any(those.get("x-queue-type") == "quorum" for those in arguments)


def _longest_delay(lock_request: LockRequest, now: float, *, is_kept: bool) -> float:
    longest = longest_delay(lock_request)
    if lock_request.options.stops:
        # It remains the next only for a while.
        longest = min(longest, max(FIRST_DELAY, lock_request.options.ttl / 3))
    elif is_kept:
        visible = _visible(lock_request, unset=_UNACKNOWLEDGED_FOR)
        # Celery ends a message that has expired when it comes back.
        expires_in = max(longest, lock_request.expires_at(now) - now)
        longest = min(LONGEST_KEPT, visible, expires_in)
    return min(longest, _until_deadline(lock_request, now))


def _until_deadline(lock_request: LockRequest, now: float) -> float:
    return LAST_TRY_SHARE * max(0.0, lock_request.start_deadline - now)


def republish(
    lock_request: LockRequest,
    wait_history: WaitHistory,
    delay: float,
    *,
    begun: bool = False,
    waits_for: Sequence[str] = (),
) -> None:
    """
    Publish the same message to arrive after `delay` seconds.

    Args:
        lock_request: what the message takes.
        wait_history: how long and how often it has waited.
        delay: in seconds.
        begun: whether a body for the same work is running.
        waits_for: node keys whose release wakes it.
    """
    request = lock_request.request
    envelope = lock_request.envelope.waiting(
        replace(wait_history, requeues=wait_history.requeues + 1),
        begun=begun or lock_request.may_have_begun,
        waits_for=waits_for,
    )
    send_again(lock_request.task, request, envelope, countdown=delay)


def _waits_for(lock_request: LockRequest, error: LockNotAcquired) -> Sequence[str]:
    """Return the node keys, or pauses, whose end may let the message run; a rate has no end."""
    if isinstance(error, QuorumUnavailable):
        return (QUORUM,) if error.available_in is None else ()
    if not isinstance(error, LockContended):
        return ()
    # In a split vote no holder is known, but the contenders have some of these keys.
    refusal = Refusal.of(error)
    keys = given_back(refusal.refused) or (lock_request.held_keys if error.split else ())
    pauses = [pause_of(key.stored) for key in refusal.keys if refusal.is_paused]
    if pauses and (reservation := lock_request.envelope.reservation) is not None:
        # To a worker that looks, what is reserved for the message itself is never free.
        reserved = {key.lock for key in reservation.keys}
        keys = tuple(key for key in keys if key.stored not in reserved)
    return bounded_waits_for([*map(in_header, keys), *dict.fromkeys(pauses)])


def fail_exhausted(
    lock_request: LockRequest, error: LockNotAcquired, waited: float, requeues: int
) -> NoReturn:
    """End a task that has waited for longer than `lock_give_up_after`."""
    task, request = lock_request.task, lock_request.request
    logger.error(
        "task-gives-up",
        "Task %(task)s[%(task_id)s] gives up after %(seconds).0f s and %(requeues)d requeues "
        "without its lock: %(error)s",
        task=task.name,
        task_id=request.id,
        seconds=waited,
        requeues=requeues,
        error=error,
    )
    emit(Event.GAVE_UP, task, request.id, waited=waited, requeues=requeues, error=error)
    limit = described("lock_give_up_after", lock_request.options.give_up_after)
    raise LockNotAcquired(
        f"Task {task.name}[{request.id}] did not get its lock within {limit} "
        f"(tried again {requeues} times). "
        f"The last attempt: {error}"
    ) from error


def _not_published(
    lock_request: LockRequest, error: LockNotAcquired, failure: Exception
) -> NoReturn:
    task, request = lock_request.task, lock_request.request
    reason, advice = (
        ("its arguments cannot be encoded", "Set the task's serializer to one that encodes them.")
        if isinstance(failure, EncodeError)
        else ("its message is already acknowledged", "With acks_late=True it would come again.")
    )
    if task.acks_late and not isinstance(failure, EncodeError):
        logger.error(
            "requeue-failed-returned",
            "Task %(task)s[%(task_id)s] could not be requeued (%(failure)r); its message is "
            "returned to the broker. %(error)s",
            task=task.name,
            task_id=request.id,
            failure=failure,
            error=error,
        )
        if lock_request.place is not None:
            # The message that the broker delivers again does not name it.
            lock_request.client.cancel(lock_request.place)
        raise Reject(failure, requeue=True) from failure
    logger.error(
        "requeue-failed-ended",
        "Task %(task)s[%(task_id)s] could not be requeued (%(failure)r) and %(reason)s, so it "
        "fails. %(error)s",
        task=task.name,
        task_id=request.id,
        failure=failure,
        reason=reason,
        error=error,
    )
    raise LockNotAcquired(
        f"Task {task.name}[{request.id}] did not get its lock ({error}) and could not be requeued: "
        f"{failure!r}. {advice}"
    ) from failure


def delay_after(requeues: int, longest: float) -> float:
    """Return the delay of a message that has been requeued `requeues` times."""
    # Full jitter: waiting tasks that started together must not come back together.
    ceiling = min(longest, FIRST_DELAY * 2.0 ** min(requeues, 16))
    floor = min(SHORTEST_DELAY, ceiling)
    return random.uniform(floor, ceiling)  # noqa: S311  # spreads load, protects nothing


def longest_delay(lock_request: LockRequest) -> float:
    """
    Return the longest delay of a message, after which it tries again without a wake-up.

    A holder that died wakes no waiter, and its lock ends with its TTL. And a worker keeps a delayed
    message unacknowledged: when the visibility timeout passes, the broker delivers it once more.
    """
    options = lock_request.options
    longest = min(LONGEST_DELAY, max(FIRST_DELAY, options.ttl))
    return min(longest, _visible(lock_request))


def _visible(lock_request: LockRequest, unset: float = math.inf) -> float:
    conf = lock_request.task.app.conf
    visibility = (conf.broker_transport_options or {}).get("visibility_timeout")
    return float(visibility or unset) / 2
