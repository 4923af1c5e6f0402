"""
Handing a running task's lock to the message that continues it: a retry, or a replacement.

If several steps replace the task (a chain, a group or a chord), only the last one has its id. The
message of that step brings the keys, and a worker releases them when the step has ended, or when an
earlier one ends after which Celery sends none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from celery.canvas import Signature, maybe_signature

from celery_redlock.core import Reservation
from celery_redlock.core.lease import holding_of
from celery_redlock.errors import LockKeyError
from celery_redlock.protocol.keys import Key, given_back
from celery_redlock.tasks.border import AppLike, RequestLike, TaskLike
from celery_redlock.tasks.config.client import lock_keys
from celery_redlock.tasks.message.envelope import HEADER, Envelope, fresh_nonce
from celery_redlock.tasks.message.expiry import reservation_end
from celery_redlock.tasks.message.node_keys import dedupe_key_for, marker_of
from celery_redlock.tasks.message.owner_label import label_for, parse_owner
from celery_redlock.tasks.message.withdrawal import cancel_reservation
from celery_redlock.tasks.rules.ending import State, Unused, keeps_reservation
from celery_redlock.tasks.rules.facts import Raised, Role
from celery_redlock.tasks.run.running_lock import RunningLock, current_running_lock


def continued_by(task_id: str | None) -> RunningLock | None:
    """Return what the running body holds, if a message with this id continues its task."""
    running_lock = current_running_lock()
    if running_lock is None or running_lock.body.pid != os.getpid():
        return None  # a forked child has nothing to hand on
    if (
        running_lock.request.is_eager
        or not running_lock.body.running
        or running_lock.request.id != task_id
    ):
        return None
    return running_lock


def handed_over(
    running_lock: RunningLock,
    name: str,
    keys: tuple[Key, ...],
    expires_at: float,
    *,
    envelope: Envelope,
    marker: str,
) -> Envelope | None:
    """
    Return the header with which the message that continues a body gets its lock.

    None if the message needs another lock than the body has. Once it is out, call
    `RunningLock.hand_over`.

    Args:
        running_lock: the lock that the body holds.
        name: the task that is sent.
        keys: the keys of its lock.
        expires_at: when the lock expires if no worker takes it over, in seconds since the epoch.
        envelope: the message's nonce and tick.
        marker: digest of the message's dedupe marker.
    """
    lease, lock_request, kept = running_lock.body_lease, running_lock.lock_request, given_back(keys)
    if lease is None or not kept or set(kept) != set(lock_request.transferable_keys):
        return None
    window = lock_request.window_remaining
    label = label_for(
        Role.QUEUED,
        running_lock.request.id,
        due_us=None if lock_request.tick is None else lock_request.tick.due_us,
        tick_id=lock_request.tick_id,
        marker=marker,
        task=name,
        ignored=lock_request.ignores_result,
    )
    return Envelope(
        nonce=envelope.nonce,
        tick=envelope.tick,
        reservation=Reservation(
            node_keys=holding_of(lease).names_of(kept),
            owner=lock_request.client.new_owner_value(label),
            expires_at=expires_at,
        ),
        handovers=lock_request.envelope.handovers + 1,
        window_until=None if window is None else time.time() + window,
    )


def keep_for_steps(running_lock: RunningLock, replacement: Any) -> Reservation | None:
    """
    Have the last of several steps that replace a running task bring the task's keys.

    Once the steps are sent, call `RunningLock.hand_over` with the reservation that is returned.
    None if a single step replaces it, which gets the keys when it is published; if the keys have a
    window, do not outlast the body, or may go to a newer call; or if a step may need them itself.

    Args:
        running_lock: the lock that the body holds.
        replacement: the signature that is about to be sent, with all its ids.
    """
    lock_request, request, task = running_lock.lock_request, running_lock.request, running_lock.task
    keys, steps = lock_request.transferable_keys, list(_steps(replacement))
    last = next((step for step in steps if step.options.get("task_id") == request.id), None)
    if (
        (running_lock.body_lease is None or not keys or last is None or len(steps) < 2)
        or (request.is_eager or running_lock.state is not State.RUNNING)
        or lock_request.window_ends is not None
        or lock_request.options.on_duplicate not in ("existing", "raise")  # takes queued keys over
        or any(_may_need(running_lock, step) for step in steps if step is not last)
        or not _may_bring_keys(running_lock, last)
    ):
        return None
    envelope = Envelope(nonce=fresh_nonce(), tick=lock_request.tick)
    dedupe_key = dedupe_key_for(
        lock_request.client,
        envelope,
        task_id=request.id,
        name=last.task,
        nesting=(request.replaced_task_nesting or 0) + 1,
    )
    end = reservation_end(task, lock_request.options, {}, time.time(), continuation=True)
    header = handed_over(
        running_lock,
        task.name,
        keys,
        end,
        envelope=envelope,
        marker=marker_of(dedupe_key),
    )
    if header is None:
        return None
    last.set(headers={**(last.options.get("headers") or {}), HEADER: header.write()})
    return header.reservation


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
