"""
Sending a unique task: take its lock, send it, lengthen the lock.

The lock travels with the message (`Envelope`), and a worker takes it over. In between it belongs to
nobody who could renew it, so its life is bounded twice: until the message is out by
`lock_publish_grace`, because a publisher may die before; then by `lock_queue_ttl`.

A duplicate is given up here only where nobody can miss it: its id is known to nobody, and nothing
is to follow it. All others are sent, and the worker settles what becomes of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from celery.utils import uuid

from celery_redlock.errors import LockKeyError
from celery_redlock.tasks.config.client import redlock_for
from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.message.envelope import HEADER, Envelope, fresh_nonce
from celery_redlock.tasks.message.expiry import reservation_end, window_end
from celery_redlock.tasks.message.node_keys import dedupe_key_for, marker_of, publish_keys
from celery_redlock.tasks.publish.unique_publish import UniquePublish, continues, send_as
from celery_redlock.tasks.run.handover import handover_for, inherited_tick
from celery_redlock.tasks.ticks.tick_context import pending_tick, pending_tick_owns_id

__all__ = ["publish"]

#: A call with one of these is waited for by something that knows its id, or is followed by
#: something that has to happen.
DEPENDENT_OPTIONS = ("chord", "chain", "group_id", "link", "link_error")


def publish(
    task: Any,
    send: Callable[..., Any],
    args: Any,
    kwargs: Any,
    task_id: str | None,
    options: dict[str, Any],
) -> Any:
    """
    Send a task, with its lock if its mode takes one at publish.

    Args:
        task: the task, which has a lock plan.
        send: Celery's own `apply_async`.
        args: the call's positional arguments.
        kwargs: the call's keyword arguments.
        task_id: the id that the caller chose, if any.
        options: everything else that `apply_async` was called with.

    Returns:
        The task's result, or a `DuplicateResult`.

    Raises:
        DuplicateTask: by policy, instead of a `DuplicateResult`.
        LockKeyError: the arguments make no key, and nobody waits for this very message.
    """
    lock: LockOptions = task.redlock_plan.options
    if (
        (not lock.mode_spec.at_publish and not task_id)
        or HEADER in (options.get("headers") or ())
        or task.app.conf.task_always_eager
        or not _callable_with(task, args, kwargs)
    ):
        return send(args, kwargs, task_id=task_id, **options)
    # A body may also send itself anew, with an id that says whose work it is.
    continued = inherited_tick(task_id) if continues(options) else None
    if not lock.mode_spec.at_publish:
        if task_id is None or continued is None:
            return send(args, kwargs, task_id=task_id, **options)
        envelope = Envelope(nonce=fresh_nonce(), tick=continued)
        return send_as(send, args, kwargs, task_id, options, envelope)
    redlock = redlock_for(task.app)
    named = bool(task_id) and not pending_tick_owns_id(task.name)
    has_dependents = named or any(options.get(option) for option in DEPENDENT_OPTIONS)
    try:
        keys = task.redlock_plan.keys.keys_for(args, kwargs)
    except LockKeyError:
        if not has_dependents:
            raise
        # Mostly sent by a task that ends: it would fail for what is wrong with the one after it.
        # The worker that gets this one says the same, in its name.
        return send_as(
            send, args, kwargs, task_id or uuid(), options, Envelope(nonce=fresh_nonce())
        )
    node_keys = publish_keys(redlock, lock.mode_spec, keys)
    now = time.time()
    tick, nonce, known_id = pending_tick(task.name), fresh_nonce(), bool(task_id)
    task_id = task_id or uuid()
    dedupe_key = dedupe_key_for(
        redlock,
        Envelope(nonce=nonce, tick=tick or continued),
        task_id=task_id,
        name=task.name,
        retries=options.get("retries") or 0,
        nesting=options.get("replaced_task_nesting") or 0,
    )
    if known_id:
        end = reservation_end(task, lock, options, now, continuation=True)
        handover = handover_for(
            task.name, task_id, node_keys, end, nonce=nonce, marker=marker_of(dedupe_key)
        )
        if handover is not None:
            envelope = replace(handover.envelope, tick=continued)
            sent = send_as(send, args, kwargs, task_id, options, envelope)
            handover.sent()
            return sent
    message = UniquePublish(
        task=task,
        redlock=redlock,
        node_keys=node_keys,
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
    )
    return message.send()


def _callable_with(task: Any, args: Any, kwargs: Any) -> bool:
    """Leave it to Celery to refuse what cannot be called, in its own words."""
    if not isinstance(args or (), list | tuple) or not isinstance(kwargs or {}, Mapping):
        return False
    # A task that was written as a class has no header; Celery does not check its calls.
    check = getattr(task, "__header__", None)
    if task.typing and check is not None:
        check(*(args or ()), **(kwargs or {}))
    return True
