"""
Publishing a unique task: acquire its lock, send the message, extend the lock.

The lock travels with the message (`Envelope`), and a worker takes it over. No process extends it in
between, so its TTL is set twice: `PUBLISH_GRACE` until the message is sent, because the
publisher may die; then `lock_queue_ttl`.

A publisher drops a duplicate only if no other program depends on that message: none knows its id,
and it has no callbacks. All other duplicates are sent, and a worker decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from celery.utils import uuid

from celery_redlock.errors import LockKeyError
from celery_redlock.tasks.border import TaskLike
from celery_redlock.tasks.config.client import client_for, lock_keys
from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.message.envelope import HEADER, Envelope, fresh_nonce
from celery_redlock.tasks.message.expiry import reservation_end
from celery_redlock.tasks.message.node_keys import dedupe_key_for, marker_of, publish_keys
from celery_redlock.tasks.publish.call import Call, debounced_call
from celery_redlock.tasks.publish.unique_publish import UniquePublish
from celery_redlock.tasks.run.handover import continued_by, handed_over
from celery_redlock.tasks.ticks.tick_context import pending_tick


def publish(
    task: TaskLike,
    send: Callable[..., Any],
    args: Any,
    kwargs: Any,
    task_id: str | None,
    options: dict[str, Any],
) -> Any:
    """
    Publish a task, with its lock if its mode locks at publish.

    Args:
        task: the task, which has a lock plan.
        send: Celery's own `apply_async`.
        args: the call's positional arguments.
        kwargs: the call's keyword arguments.
        task_id: the id that the caller chose, if any.
        options: all other arguments of the `apply_async` call.

    Returns:
        The task's result, or a `DuplicateResult`.

    Raises:
        DuplicateTask: the call is a duplicate, and `lock_on_duplicate` is `raise`.
        ConfigurationError: the task has `lock_debounce`, and the call an ETA of its own.
        LockKeyError: the lock key cannot be made from the arguments, and the message has no
            dependents.
    """
    lock: LockOptions = task.redlock_plan.options
    if (
        (not lock.mode_spec.at_publish and not task_id and not lock.stops)
        or HEADER in (options.get("headers") or ())
        or task.app.conf.task_always_eager
        or not _callable_with(task, args, kwargs)
    ):
        return send(args, kwargs, task_id=task_id, **options)
    now = time.time()
    call = Call(
        task=task,
        apply_async=send,
        args=args,
        kwargs=kwargs,
        task_id=task_id or uuid(),
        options=options,
    )
    # A retry and a replacement are sent by the body, with the body's own task id.
    body = continued_by(task_id) if call.continues else None
    tick = None if body is None else body.lock_request.tick
    sent = now if body is None else body.lock_request.age_us / 1_000_000
    envelope = Envelope(nonce=fresh_nonce(), tick=tick, sent=sent if lock.stops else None)
    if lock.mode_spec.at_publish:
        return _publish_with_lock(call, envelope, now, has_id=bool(task_id))
    if envelope.tick is None and envelope.sent is None:
        return send(args, kwargs, task_id=task_id, **options)
    return call.send(envelope)


def _publish_with_lock(call: Call, envelope: Envelope, now: float, *, has_id: bool) -> Any:
    """
    Publish a call whose task locks at publish.

    Args:
        call: the call.
        envelope: what the message carries beside the lock.
        now: seconds since the epoch.
        has_id: whether the caller chose the task id.
    """
    task, lock, client, debounced = call.task, call.lock, client_for(call.task.app), None
    if lock.debounce is not None and not call.continues:
        debounced = debounced_call(task, lock.debounce, call.options, now)
        envelope = replace(envelope, sent=debounced.made)
        call = call.having(debounced.with_eta(call.options))
    pending = pending_tick(task.name)
    is_waited_for = has_id and (pending is None or not pending.owns_id)
    has_dependents = call.has_dependents or is_waited_for
    try:
        keys = publish_keys(lock.mode_spec, lock_keys(client, task, call.args, call.kwargs))
    except LockKeyError:
        if not has_dependents:
            raise
        # Usually Celery makes this call while finishing the previous task; raising here would fail
        # that task for its successor's arguments. The worker raises the same for the successor.
        return call.send(Envelope(nonce=envelope.nonce))
    tick = None if pending is None else pending.tick
    dedupe_key = dedupe_key_for(
        client,
        replace(envelope, tick=tick or envelope.tick),
        task_id=call.task_id,
        name=task.name,
        retries=call.options.get("retries") or 0,
        nesting=call.options.get("replaced_task_nesting") or 0,
    )
    marker = marker_of(dedupe_key)
    running_lock = continued_by(call.task_id)
    if running_lock is not None:
        end = reservation_end(task, lock, call.options, now, continuation=True)
        header = handed_over(running_lock, task.name, keys, end, envelope=envelope, marker=marker)
        if header is not None:
            sent = call.send(header)
            running_lock.hand_over(header.reservation)
            return sent
    return UniquePublish(
        call=call,
        client=client,
        keys=keys,
        envelope=envelope,
        marker=marker,
        now=now,
        has_dependents=has_dependents,
        tick=tick,
        debounced=debounced,
    ).send()


def _callable_with(task: TaskLike, args: Any, kwargs: Any) -> bool:
    """Return whether Celery can send the call; raise as Celery does for wrong arguments."""
    if not isinstance(args or (), list | tuple) or not isinstance(kwargs or {}, Mapping):
        return False
    # A class-based task has no header, and Celery does not check its calls.
    check = getattr(task, "__header__", None)
    if task.typing and check is not None:
        check(*(args or ()), **(kwargs or {}))
    return True
