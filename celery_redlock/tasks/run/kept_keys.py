"""
Keeping the keys of a task for the steps that replace it: a chain, a group or a chord.

Only the last step has the id of the replaced task. Its message brings the keys, and a worker
releases them when that step has ended, or when an earlier one ends after which Celery sends none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from celery.canvas import Signature, maybe_signature

from celery_redlock.core import Reservation
from celery_redlock.core.lease import holding_of
from celery_redlock.errors import LockKeyError
from celery_redlock.tasks.border import AppLike, RequestLike, TaskLike
from celery_redlock.tasks.config.client import lock_keys
from celery_redlock.tasks.message.envelope import HEADER, Envelope, fresh_nonce
from celery_redlock.tasks.message.expiry import reservation_end
from celery_redlock.tasks.message.node_keys import dedupe_key_for, marker_of
from celery_redlock.tasks.message.owner_label import label_for, parse_owner
from celery_redlock.tasks.message.withdrawal import cancel_reservation
from celery_redlock.tasks.rules.ending import State, Unused, keeps_reservation
from celery_redlock.tasks.rules.facts import Raised, Role
from celery_redlock.tasks.run.handover import Handover
from celery_redlock.tasks.run.running_lock import RunningLock


def keep_for_steps(running_lock: RunningLock, replacement: Any) -> Handover | None:
    """
    Have the last of several steps that replace a running task bring the task's keys.

    None if a single step replaces it, which gets the keys when it is published; if the keys have a
    window, do not outlast the body, or may go to a newer call; or if a step may need them itself.

    Args:
        running_lock: the lock that the body holds.
        replacement: the signature that is about to be sent, with all its ids.
    """
    lock_request, lease = running_lock.lock_request, running_lock.body_lease
    keys, request, task = lock_request.transferable_keys, running_lock.request, running_lock.task
    steps = list(_steps(replacement))
    last = next((step for step in steps if step.options.get("task_id") == request.id), None)
    if (
        (lease is None or not keys or last is None or len(steps) < 2)
        or (request.is_eager or running_lock.state is not State.RUNNING)
        or lock_request.window_ends is not None
        or lock_request.options.on_duplicate not in ("existing", "raise")  # takes queued keys over
        or any(_may_need(running_lock, step) for step in steps if step is not last)
        or not _may_bring_keys(running_lock, last)
    ):
        return None
    client, now = lock_request.client, time.time()
    envelope = Envelope(
        nonce=fresh_nonce(),
        handovers=lock_request.envelope.handovers + 1,
        tick=lock_request.tick,
    )
    dedupe_key = dedupe_key_for(
        client,
        envelope,
        task_id=request.id,
        name=last.task,
        nesting=(request.replaced_task_nesting or 0) + 1,
    )
    label = label_for(
        Role.QUEUED,
        request.id,
        due_us=None if lock_request.tick is None else lock_request.tick.due_us,
        tick_id=lock_request.tick_id,
        marker=marker_of(dedupe_key),
        task=task.name,
        ignored=lock_request.ignores_result,
    )
    reservation = Reservation(
        node_keys=holding_of(lease).names_of(keys),
        owner=client.new_owner_value(label),
        expires_at=reservation_end(task, lock_request.options, {}, now, continuation=True),
    )
    envelope = replace(envelope, reservation=reservation)
    last.set(headers={**(last.options.get("headers") or {}), HEADER: envelope.write()})
    return Handover(envelope=envelope, running_lock=running_lock)


def cancel_kept(task: TaskLike, request: RequestLike, raised: Raised) -> None:
    """
    Cancel the reservation of a last step, if this request is that step, or keeps it from coming.

    Limit: it is not cancelled for a step that ends with `Ignore`, which may also mean that another
    message continues the step, for example its replacement.

    Args:
        task: the task that has ended, of any class.
        request: its request.
        raised: the exception with which it has ended, if any.
    """
    unused = Unused(state=State.WAITING, raised=raised, acks_late=bool(task.acks_late))
    if raised is Raised.IGNORE or keeps_reservation(unused):
        return
    has_run = raised in (Raised.NOTHING, Raised.EXCEPTION)
    role = Role.FINISHED if has_run else Role.REVOKED
    own = Envelope.read(request.headers).reservation
    owner = None if own is None else parse_owner(own.owner)
    # A call of the replaced task itself takes the keys over, as it does with any reservation.
    if owner is not None and not owner.runs(task.name):
        cancel_reservation(task.app, (request.headers or {})[HEADER], role)
    if raised in (Raised.EXCEPTION, Raised.REJECT, Raised.REJECT_TO_QUEUE):
        cancel_for_steps(task.app, request, role)


def cancel_for_steps(app: AppLike | None, request: RequestLike, role: Role = Role.REVOKED) -> None:
    """Cancel the reservations of the steps after a request, which Celery will not send."""
    for each in (*(request.chain or ()), *filter(None, [request.chord])):
        for step in _steps(maybe_signature(each)):
            cancel_reservation(app, (step.options.get("headers") or {}).get(HEADER), role)


def _steps(node: Any) -> Iterator[Any]:
    """Yield the tasks in a signature, and in the signatures that it contains."""
    if isinstance(node, list | tuple):
        for each in node:
            yield from _steps(each)
    elif hasattr(node, "tasks"):
        yield from _steps(node.tasks)
        yield from _steps(getattr(node, "body", None))
    elif isinstance(node, Signature):
        yield node


def _may_need(running_lock: RunningLock, step: Any) -> bool:
    """Return whether a step may lock one of the keys itself, as far as is known before it runs."""
    task = running_lock.task.app.tasks.get(step.task)
    plan = getattr(task, "redlock_plan", None)
    if plan is None or plan.keys is None:
        return False
    if not step.immutable:
        return True  # another step's result is its first argument
    try:
        keys = lock_keys(running_lock.lock_request.client, task, step.args, step.kwargs)
    except LockKeyError:
        return False  # the step fails
    return not set(keys).isdisjoint(running_lock.lock_request.keys)


def _may_bring_keys(running_lock: RunningLock, last: Any) -> bool:
    """Return whether the last step locks and marks nothing, or is a call that has the same keys."""
    task = running_lock.task
    if last.task != task.name:
        # A step with its own lock or marker gives up a reservation of other keys.
        return getattr(task.app.tasks.get(last.task), "redlock_plan", None) is None
    if not last.immutable:
        return False
    try:
        keys = lock_keys(running_lock.lock_request.client, task, last.args, last.kwargs)
    except LockKeyError:
        return False
    return set(keys) == set(running_lock.lock_request.keys)
