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
from celery_redlock.tasks.message.expiry import reservation_end, window_end
from celery_redlock.tasks.message.node_keys import dedupe_key_for, marker_of, publish_keys
from celery_redlock.tasks.publish.burst import debounced_call
from celery_redlock.tasks.publish.unique_publish import UniquePublish, continues, send_as
from celery_redlock.tasks.run.handover import handover_for, inherited
from celery_redlock.tasks.ticks.tick_context import pending_tick, pending_tick_owns_id

#: With one of these options, Celery waits for the message's id or runs something after it.
DEPENDENT_OPTIONS = ("chord", "chain", "group_id", "link", "link_error")


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
    now, debounced = time.time(), None
    # A retry and a replacement are sent by the body, with the body's own task id.
    continued, sent = inherited(task_id) if continues(options) else (None, None)
    sent = (sent or now) if lock.stops else None
    if not lock.mode_spec.at_publish:
        if continued is None and sent is None:
            return send(args, kwargs, task_id=task_id, **options)
        envelope = Envelope(nonce=fresh_nonce(), tick=continued, sent=sent)
        return send_as(send, args, kwargs, task_id or uuid(), options, envelope)
    if lock.debounce is not None and not continues(options):
        debounced = debounced_call(task, lock.debounce, options, now)
        sent, options = debounced.made, debounced.with_eta(options)
    client = client_for(task.app)
    named = bool(task_id) and not pending_tick_owns_id(task.name)
    has_dependents = named or any(options.get(option) for option in DEPENDENT_OPTIONS)
    try:
        keys = lock_keys(client, task, args, kwargs)
    except LockKeyError:
        if not has_dependents:
            raise
        # Usually Celery makes this call while finishing the previous task; raising here would fail
        # that task for its successor's arguments. The worker raises the same for the successor.
        return send_as(
            send, args, kwargs, task_id or uuid(), options, Envelope(nonce=fresh_nonce())
        )
    keys = publish_keys(lock.mode_spec, keys)
    tick, nonce, known_id = pending_tick(task.name), fresh_nonce(), bool(task_id)
    task_id = task_id or uuid()
    dedupe_key = dedupe_key_for(
        client,
        Envelope(nonce=nonce, tick=tick or continued),
        task_id=task_id,
        name=task.name,
        retries=options.get("retries") or 0,
        nesting=options.get("replaced_task_nesting") or 0,
    )
    if known_id:
        end = reservation_end(task, lock, options, now, continuation=True)
        handover = handover_for(
            task.name, task_id, keys, end, nonce=nonce, marker=marker_of(dedupe_key)
        )
        if handover is not None:
            envelope = replace(handover.envelope, tick=continued)
            sent = send_as(send, args, kwargs, task_id, options, envelope)
            handover.sent()
            return sent
    message = UniquePublish(
        task=task,
        client=client,
        keys=keys,
        apply_async=send,
        args=args,
        kwargs=kwargs,
        task_id=task_id,
        nonce=nonce,
        marker=marker_of(dedupe_key),
        options=options,
        end=reservation_end(task, lock, options, now, continuation=False),
        window_until=window_end(task, lock, options, now),
        has_dependents=has_dependents,
        tick=tick,
        continued=continued,
        sent=sent,
        debounced=debounced,
    )
    return message.send()


def _callable_with(task: TaskLike, args: Any, kwargs: Any) -> bool:
    """Return whether Celery can send the call; raise as Celery does for wrong arguments."""
    if not isinstance(args or (), list | tuple) or not isinstance(kwargs or {}, Mapping):
        return False
    # A class-based task has no header, and Celery does not check its calls.
    check = getattr(task, "__header__", None)
    if task.typing and check is not None:
        check(*(args or ()), **(kwargs or {}))
    return True
