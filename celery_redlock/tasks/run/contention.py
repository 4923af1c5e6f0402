"""
Carrying out what the rules decide about a message that does not simply get its lock.

`resolve` asks the rules for the next step until the message has its lock or has ended: a fact that
they need (`LEARN`), or an action (`EFFECTS`). No decision is made here: a new one takes a row in
`rules.arrival`, and a function here that carries it out.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NoReturn

from celery.exceptions import Reject

from celery_redlock._log import event_logger
from celery_redlock.core import Reservation
from celery_redlock.core.failures import Refusal
from celery_redlock.core.waiting import described, limited
from celery_redlock.errors import DuplicateTask, LockContended, LockNotAcquired, QuorumUnavailable
from celery_redlock.protocol.texts import shortened
from celery_redlock.tasks.border import ignores_result, state_of
from celery_redlock.tasks.config.broker_node import WITHOUT_SERVER
from celery_redlock.tasks.events import Event, MonitorEvent, emit, send_monitor_event
from celery_redlock.tasks.message import expiry
from celery_redlock.tasks.message.duplicate_result import result_of
from celery_redlock.tasks.message.expiry import NEXT_RUN_TTLS
from celery_redlock.tasks.message.in_words import lock_key_of, reason_of, sentence
from celery_redlock.tasks.message.node_keys import stop_request_keys
from celery_redlock.tasks.message.owner_label import label_id
from celery_redlock.tasks.rules import arrival as rules
from celery_redlock.tasks.rules.arrival import Action
from celery_redlock.tasks.rules.facts import Need, Role
from celery_redlock.tasks.run.arrival_facts import contention_of, waiting_of
from celery_redlock.tasks.run.case import LEARN, Case
from celery_redlock.tasks.run.requeue import (
    delay_after,
    fail_exhausted,
    longest_delay,
    republish,
    requeue,
    wait_history_of,
)
from celery_redlock.tasks.run.shown_end import Withdrawn, Yielded

logger = event_logger(__name__)

#: Pauses of an eager call that waits, in seconds.
FIRST_PAUSE_IN_PLACE, LONGEST_PAUSE_IN_PLACE = 0.01, 1.0
#: Seconds after which an eager call that waits is logged.
LOGGED_AFTER = 1.0
#: How long a run that asks another to stop retries, in seconds, while several ask at once.
RETRY_FOR = 0.5


def resolve(case: Case) -> bool:
    """
    Do what the rules decide about a message that does not simply get its lock and marker.

    Returns:
        Whether the body runs; otherwise the task ends with `lock_skip_result`.

    Raises:
        Requeued: the message was requeued.
        Yielded: the outcome belongs to another delivery, another message of the tick, or the call
            that replaced this one.
        Reject: the message goes back to the broker or to the dead letters.
        LockNotAcquired: the task fails.
        DuplicateTask: the task fails, because another task does its work.
    """
    outcome: Case | bool = case
    while isinstance(outcome, Case):
        step, case = _next_step(outcome)
        outcome = LEARN[step](case) if isinstance(step, Need) else _carry_out(step, case)
    return outcome


def _next_step(case: Case) -> tuple[Action | Need, Case]:
    """Ask the rules about the message, and return their answer with the facts that they had."""
    if case.arrival is not None:
        return rules.on_arrival(case.arrival), case
    known = case.contention
    if known is None:
        known = contention_of(
            case.lock_request,
            Refusal.of(case.error) if isinstance(case.error, LockContended) else None,
            has_retaken=case.has_retaken,
            has_taken_over=case.has_taken_over,
        )
    return rules.on_contention(known), replace(case, contention=known)


def _carry_out(action: Action, case: Case) -> bool | Case:
    """Take a step; one that ends the message without its body takes the marker first."""
    if action in rules.MARKED_AS:
        _leave_marker(case, rules.MARKED_AS[action])
    return EFFECTS[action](case)


# Messages that need their lock later.


def _wait(case: Case) -> bool | Case:
    is_held = isinstance(case.error, LockContended) and not case.error.split
    waiting = waiting_of(
        case.lock_request,
        is_refused=case.is_refused and is_held,
        is_registered=case.running_lock.is_registered,
    )
    return _carry_out(rules.how_to_wait(waiting), case)


def _try_by_name(case: Case) -> bool | Case:
    return _acquire(case, by_name=True)


def _requeue(case: Case) -> NoReturn:
    try:
        requeue(case.lock_request, case.why)
    except LockNotAcquired:
        _leave_marker(case, rules.MARKED_AS[Action.GIVE_UP])  # it could not be published again
        raise


def _give_up(case: Case) -> NoReturn:
    lock_request = case.lock_request
    history = wait_history_of(lock_request)
    fail_exhausted(lock_request, case.why, history.waited(time.time()), history.requeues)


def _wait_in_place(case: Case) -> bool | Case:
    """Pause in the caller's thread, and try again: under `apply()` there is no queue."""
    running_lock, lock_request, error = case.running_lock, case.lock_request, case.why
    # If the key has several holders, another one may release its slot.
    if (
        isinstance(error, LockContended)
        and not Refusal.of(error).is_shared
        and running_lock.is_held_around(error.holder)
    ):
        raise Refusal.of(error).error(
            f"Task {case.name} was called eagerly by the body or block that holds its lock "
            f"{shortened(error.key or '')!r}, and would wait for the end of its own caller. "
            "Call it after that, or send it to a worker.",
            nodes=error.nodes,
        ) from None
    waited = max(0.0, time.time() - lock_request.started)
    remaining = limited(lock_request.options.give_up_after) - waited
    if remaining <= 0:
        fail_exhausted(lock_request, error, waited, case.pauses)
    is_logged = case.is_logged or waited >= LOGGED_AFTER
    if is_logged and not case.is_logged:
        logger.warning(
            "eager-call-waits",
            "Task %(task)s[%(task_id)s] was called eagerly and blocks its caller until it has "
            "its lock, for up to %(limit)s: %(reason)s%(advice)s",
            task=case.task_name,
            task_id=case.task_id,
            limit=described("lock_give_up_after", lock_request.options.give_up_after),
            reason=reason_of(error),
            advice=f" {WITHOUT_SERVER}" if isinstance(error, QuorumUnavailable) else "",
        )
    longest = min(LONGEST_PAUSE_IN_PLACE, FIRST_PAUSE_IN_PLACE * 2.0 ** min(case.pauses, 16))
    time.sleep(min(remaining, random.uniform(0.0, longest)))  # noqa: S311  # spreads load only
    return _acquire(replace(case, pauses=case.pauses + 1, is_logged=is_logged))


def _retake(case: Case) -> bool | Case:
    lock_request = case.lock_request
    lock_request.client.evict(lock_request.dedupe_key, case.holder_value)
    return _acquire(replace(case, has_retaken=True))


def _acquire(case: Case, *, by_name: bool = False) -> bool | Case:
    try:
        case.running_lock.acquire(by_name=by_name)
    except LockNotAcquired as error:
        return case.met(error)
    return True


def _requeue_copy(case: Case) -> NoReturn:
    """Requeue a message until its other delivery, or the other message of its tick, has ended."""
    lock_request = case.lock_request
    task, request = lock_request.task, lock_request.request
    runs = case.holder is not None and case.holder.role is Role.RUNNING
    # This is not counted as waiting for a lock: the other delivery may run for any time.
    history = replace(wait_history_of(lock_request), first_seen=time.time())
    # It has to come back while the marker still shows that the other one has finished.
    longest = min(longest_delay(lock_request), lock_request.options.dedupe_window / 2)
    delay = delay_after(history.requeues, longest)
    try:
        # A tick that has begun is not late any more, whichever of its messages ends it.
        republish(lock_request, history, delay, begun=runs and lock_request.tick is not None)
    except Exception as exc:
        if task.acks_late:
            logger.error(  # noqa: TRY400  # the fault is the broker's
                "redelivery-returned-to-broker",
                "Task %(task)s[%(task_id)s] %(came_again)s and could not be requeued (%(error)r); "
                "its message is returned to the broker.",
                task=case.task_name,
                task_id=case.task_id,
                came_again=case.came_again,
                error=exc,
            )
            raise Reject(exc, requeue=True) from exc
        logger.error(  # noqa: TRY400
            "redelivery-not-requeued",
            "Task %(task)s[%(task_id)s] %(came_again)s and could not be requeued (%(error)r); only "
            "the earlier delivery, which holds its lock, remains.",
            task=case.task_name,
            task_id=case.task_id,
            came_again=case.came_again,
            error=exc,
        )
        raise Yielded("an earlier delivery of this message runs") from exc
    logger.info(
        "redelivery-requeued",
        "Task %(task)s[%(task_id)s] %(came_again)s while %(holder_state)s; this delivery is "
        "requeued for %(seconds).1f s: %(reason)s",
        task=case.task_name,
        task_id=case.task_id,
        came_again=case.came_again,
        holder_state="it runs" if runs else "another message of it waits",
        seconds=delay,
        reason=reason_of(case.why),
    )
    emit(Event.REDELIVERY_REQUEUED, task, request.id, delay=delay, error=case.why)
    raise Yielded("an earlier delivery of this message runs")


# The newest call wins.


def _request_stop(case: Case) -> bool | Case:
    """Ask an older call to stop; its lock is left alone until its body has ended."""
    _reserve_next_run(case)
    return _wait(case)


def _overtake(case: Case) -> bool | Case:
    """Be the next instead of an older call that waits, and try for the lock at once."""
    _reserve_next_run(case)
    # Perhaps no call has the lock any more, and by the time that this message comes back, there may
    # be a newer one.
    if case.lock_request.envelope.reservation is None:
        return _wait(case)
    outcome = _acquire(case)
    return _wait(outcome) if isinstance(outcome, Case) else outcome


def _reserve_next_run(case: Case) -> None:
    """
    Acquire the stop-request keys of the lock; their loss asks its holder to stop.

    The holder's next extension, within `STOP_SEEN_WITHIN`, finds these keys gone. Older calls find
    that a newer one is the next, and end.
    """
    lock_request, error, holder = case.lock_request, case.error, case.holder
    if not isinstance(error, LockContended):
        return
    if lock_request.request.is_eager and case.running_lock.is_held_around(error.holder):
        return  # its own caller; it fails instead of waiting
    client, options = lock_request.client, lock_request.options
    before, refusal = lock_request.envelope.reservation, Refusal.of(error)
    keys = [key for key in lock_request.keys if key in refusal.keys] or lock_request.keys
    stop_keys = stop_request_keys(keys)
    if before is not None and not set(stop_keys) <= set(before.keys):
        # It is the next already, by the lock that it brought, and has one reservation only.
        for stop_key in stop_keys:
            client.evict(stop_key.stored, case.holder_value)
        return
    previous, renews = Reservation.of_holder(error, ()), False
    if before is not None and before.expires_at > time.time():
        renews = holder is not None and holder.role is Role.RUNNING
        previous = replace(previous, owner=before.owner) if renews else previous
    life = NEXT_RUN_TTLS * options.ttl
    try:
        reserved = client.reserve(
            stop_keys,
            ttl=life,
            grace=min(life, expiry.PUBLISH_GRACE),
            label=lock_request.label_as(Role.QUEUED),
            retry_for=RETRY_FOR,
            previous=previous if previous.owner else None,
        )
    except LockNotAcquired as failure:
        logger.info(
            "lock-request-repeated",
            "Task %(task)s[%(task_id)s] cannot ask for its lock now, but will later: %(reason)s",
            task=case.task_name,
            task_id=case.task_id,
            reason=reason_of(failure),
        )
        return
    client.confirm(reserved)
    is_its_own = case.contention is not None and case.contention.is_next
    if holder is not None and not (renews or is_its_own):
        logger.info(
            "newer-call-asks-to-stop",
            "Task %(task)s[%(task_id)s] replaces %(other_task_id)s on %(host)s, and %(request)s",
            task=case.task_name,
            task_id=case.task_id,
            request="asks it to stop" if holder.role is Role.RUNNING else "goes before it",
            other_task_id=holder.task_id,
            host=holder.host,
        )
        emit(Event.REPLACED, lock_request.task, holder.task_id, by=lock_request.request.id)
    envelope = replace(lock_request.envelope, reservation=reserved.reservation)
    case.running_lock.lock_request = replace(lock_request, envelope=envelope)


# Messages that end without their body.


def _leave_marker(case: Case, role: Role) -> None:
    """
    Take the marker of a message that ends without its body, so that no copy of it runs.

    Raises:
        Yielded: another delivery has the marker, or the message was withdrawn meanwhile.
    """
    running_lock, lock_request = case.running_lock, case.lock_request
    if not lock_request.dedupe_key:
        return
    error = case.error
    about_marker = isinstance(error, LockContended) and error.key == lock_request.dedupe_key
    try:
        over = error if about_marker and isinstance(error, LockContended) else None
        running_lock.lease = lock_request.acquire_marker(over)
        running_lock.end_without_body(role)
    except LockContended as met:
        resolve(case.met(met, is_refused=False, has_retaken=True, has_taken_over=about_marker))
    except LockNotAcquired as failure:
        logger.warning(
            "task-ended-without-marker",
            "Task %(task)s[%(task_id)s] ends without a dedupe marker; another delivery of its "
            "message would be treated as a new message: %(error)s",
            task=case.task_name,
            task_id=case.task_id,
            error=failure,
        )


def _skip(case: Case) -> bool:
    lock_request, error = case.lock_request, case.why
    task, request = lock_request.task, lock_request.request
    reason = sentence(reason_of(error))
    key = lock_key_of(getattr(error, "key", None))
    holder = getattr(error, "holder", None)
    state_of(lock_request.request).last_words = partial(
        logger.info,
        "task-skipped",
        "Task %(task)s[%(task_id)s] is skipped: %(reason)s",
        task=case.task_name,
        task_id=case.task_id,
        reason=reason,
        key=key,
        holder=holder,
    )
    emit(Event.SKIPPED, task, request.id, error=error)
    return _end_skipped(case, reason, key=key, holder=holder)


def _skip_as_missed(case: Case) -> bool:
    lock_request = case.lock_request
    tick, deadline = lock_request.tick, lock_request.options.starting_deadline
    if tick is None or deadline is None:
        return False
    late_by = time.time() - tick.due - deadline
    reason = (
        f"Entry {tick.entry!r} was due at {tick.due_at.isoformat()}, and lock_starting_deadline = "
        f"{deadline:g} s ended {late_by:.1f} s ago."
    )
    state_of(lock_request.request).last_words = partial(
        logger.warning,
        "tick-missed",
        "Task %(task)s[%(task_id)s] is skipped: %(reason)s",
        task=case.task_name,
        task_id=case.task_id,
        reason=reason,
        entry=tick.entry,
        due=tick.due_at,
        seconds=late_by,
    )
    emit(Event.TICK_MISSED, lock_request.task, lock_request.request.id, tick=tick, late_by=late_by)
    return _end_skipped(case, reason)


def _end_skipped(
    case: Case, reason: str, *, key: str | None = None, holder: str | None = None
) -> bool:
    """Keep the reason for the result, and send Celery's monitors an event."""
    case.running_lock.skip_reason = reason
    task, request = case.lock_request.task, case.lock_request.request
    facts = {"key": key, "holder": holder, "reason": reason}
    send_monitor_event(MonitorEvent.SKIPPED, task, request, **facts)
    return False


def _fail(case: Case) -> NoReturn:
    logger.warning(
        "task-fails-without-lock",
        "Task %(task)s[%(task_id)s] fails without its lock: %(error)s",
        task=case.task_name,
        task_id=case.task_id,
        error=case.why,
    )
    raise case.why


def _fail_not_rejected(case: Case) -> NoReturn:
    why = "its message is already acknowledged (acks_late is off)"
    if case.lock_request.task.acks_late and not case.lock_request.request.is_eager:
        why = "a rejected member would keep its chord waiting forever"
    logger.warning(
        "task-fails-not-rejected",
        "Task %(task)s[%(task_id)s] fails instead of being rejected: %(reason)s.",
        task=case.task_name,
        task_id=case.task_id,
        reason=why,
    )
    _fail(case)


def _reject(case: Case) -> NoReturn:
    logger.warning(
        "task-rejected",
        "Task %(task)s[%(task_id)s] is rejected: %(error)s",
        task=case.task_name,
        task_id=case.task_id,
        error=case.why,
    )
    rejection = Reject(case.why, requeue=False)
    raise rejection from case.error


def _fail_as_duplicate(case: Case) -> NoReturn:
    """Fail a duplicate that had to be sent, as its publish would have failed."""
    task, request = case.lock_request.task, case.lock_request.request
    key = lock_key_of(getattr(case.why, "key", None))
    existing = case.holder_id
    logger.warning(
        "task-fails-as-duplicate",
        "Task %(task)s[%(task_id)s] fails as a duplicate: %(error)s",
        task=case.task_name,
        task_id=case.task_id,
        error=case.why,
    )
    emit(Event.DUPLICATE, task, existing, key=key, refused=True)
    duplicate = DuplicateTask(
        f"Task {case.name} was not run: it is a duplicate of {existing} (lock {key!r}). "
        "lock_on_duplicate='existing' would skip it instead of failing it.",
        existing,
    )
    if case.holder is not None:
        ignored = bool(ignores_result(task, request))
        duplicate.result = result_of(task, case.holder, ignored=ignored)
    raise duplicate from case.error


def _end_as_withdrawn(case: Case) -> NoReturn:
    """End a task as Celery ends a revoked one: its chord and every waiting caller are notified."""
    task, request = case.lock_request.task, case.lock_request.request
    replaced = case.holder_id != label_id(request.id)
    why = f"replaced by {case.holder_id}" if replaced else "revoked"
    logger.info(
        "task-ended-withdrawn",
        "Task %(task)s[%(task_id)s] ends without its body: it was %(reason)s",
        task=case.task_name,
        task_id=case.task_id,
        reason=why,
    )
    if replaced:
        emit(Event.SUPERSEDED, task, request.id, by=case.holder_id)
    task.backend.mark_as_revoked(
        request.id, why, request=request, store_result=not ignores_result(task, request)
    )
    raise Withdrawn(why)


_ENDED_AS = {
    Role.FINISHED: "finished",
    Role.SKIPPED: "been skipped",
    Role.ABANDONED: "ended without an outcome",
    Role.FAILED: "failed without its body",
}


def _ignore(case: Case) -> NoReturn:
    """Leave the result, the callbacks and the chord part to the other delivery."""
    lock_request, other = case.lock_request, case.holder
    host = "" if other is None else other.host
    logger.info(
        "delivery-ignored",
        "Task %(task)s[%(task_id)s] %(came_again)s after it had %(outcome)s on %(host)s; this "
        "delivery is ignored",
        task=case.task_name,
        task_id=case.task_id,
        came_again=case.came_again,
        outcome="ended" if other is None else _ENDED_AS.get(other.role, f"been {other.role}"),
        host=host,
    )
    emit(Event.REDELIVERY_IGNORED, lock_request.task, lock_request.request.id, finished_by=host)
    if lock_request.envelope.reservation is not None:
        # It comes from another beat than the message that ran, which took its own lock over. Or it
        # is used up, and a copy that had failed to take it over gave it back late on a node.
        lock_request.client.cancel(lock_request.envelope.reservation)
    raise Yielded("this message's task has finished already")


def _drop_as_superseded(case: Case) -> NoReturn:
    lock_request, tick = case.lock_request, case.lock_request.tick
    if tick is not None:
        logger.warning(
            "superseded-tick-dropped",
            "Task %(task)s[%(task_id)s] is dropped: it was sent for entry %(entry)r, due at "
            "%(due)s, by a leader of schedule %(schedule)s (token %(token)s) that had been "
            "superseded (token %(newest_token)s); its successor handles this tick",
            task=case.task_name,
            task_id=case.task_id,
            entry=tick.entry,
            due=tick.due_at.isoformat(),
            schedule=tick.schedule,
            token=tick.token,
            newest_token=case.newest_token,
        )
        emit(
            Event.TICK_SUPERSEDED,
            lock_request.task,
            lock_request.request.id,
            tick=tick,
            newest=case.newest_token,
        )
    raise Yielded("a newer leader handles this tick")


def _run_unlocked(case: Case) -> bool:
    logger.error(
        "task-runs-without-lock",
        "Task %(task)s[%(task_id)s] runs WITHOUT its lock, as lock_on_unavailable allows; another "
        "task may run beside it, and it has no fencing token. %(error)s",
        task=case.task_name,
        task_id=case.task_id,
        error=case.why,
    )
    emit(Event.WITHOUT_LOCK, case.lock_request.task, case.lock_request.request.id, error=case.why)
    return True


#: One function for each action: it returns whether the body runs, or a case for the rules to
#: decide, or it raises the exception that ends the request.
EFFECTS: Mapping[Action, Callable[[Case], bool | Case]] = {
    Action.TAKE: _acquire,
    Action.RETAKE: _retake,
    Action.WAIT: _wait,
    Action.TRY_BY_NAME: _try_by_name,
    Action.REQUEUE: _requeue,
    Action.WAIT_IN_PLACE: _wait_in_place,
    Action.GIVE_UP: _give_up,
    Action.REQUEUE_COPY: _requeue_copy,
    Action.REQUEST_STOP: _request_stop,
    Action.OVERTAKE: _overtake,
    Action.RUN_UNLOCKED: _run_unlocked,
    Action.SKIP: _skip,
    Action.SKIP_AS_MISSED: _skip_as_missed,
    Action.FAIL: _fail,
    Action.FAIL_NOT_REJECTED: _fail_not_rejected,
    Action.FAIL_AS_DUPLICATE: _fail_as_duplicate,
    Action.REJECT: _reject,
    Action.IGNORE: _ignore,
    Action.DROP_AS_SUPERSEDED: _drop_as_superseded,
    Action.END_AS_REPLACED: _end_as_withdrawn,
    Action.END_AS_REVOKED: _end_as_withdrawn,
}
