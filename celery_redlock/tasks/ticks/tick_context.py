"""
The tick that the next message of a task carries.

A beat may send a task by its `apply_async`, with a lock, or by name only. Each way emits
`before_task_publish`, where the message gets its tick.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from celery import signals

from celery_redlock.tasks.message.envelope import HEADER, fresh_nonce
from celery_redlock.tasks.message.tick import Tick


@dataclass(slots=True)
class PendingTick:
    """
    A tick that waits for the message of its task.

    Attributes:
        task: the task's name.
        tick: the tick for its message.
        owns_id: whether the message's id was made for the tick, so that no caller waits for it.
        sent: whether the message was published.
    """

    task: str
    tick: Tick
    owns_id: bool = False
    sent: bool = False


_pending: ContextVar[PendingTick | None] = ContextVar("celery_redlock_pending_tick", default=None)


@contextmanager
def sending_tick(task: str, tick: Tick, *, owns_id: bool = False) -> Iterator[PendingTick]:
    """Give the tick to the first message of `task` that this context sends in the block."""
    pending = PendingTick(task, tick, owns_id)
    token = _pending.set(pending)
    try:
        yield pending
    finally:
        _pending.reset(token)


@contextmanager
def no_tick() -> Iterator[None]:
    """Give the tick to no message that is sent in the block, whatever its task."""
    token = _pending.set(None)
    try:
        yield
    finally:
        _pending.reset(token)


def pending_tick(task: str) -> PendingTick | None:
    """Return the tick that waits for the message of `task`; None if none does."""
    pending = _pending.get()
    if pending is None or pending.sent or pending.task != task:
        return None
    return pending


def connect_publishes() -> None:
    """Add pending ticks to the messages that this process publishes. Idempotent."""
    signals.before_task_publish.connect(
        _add_tick, weak=False, dispatch_uid="celery_redlock.schedules.before_task_publish"
    )


def _add_tick(sender: Any = "", headers: Any = None, **_: Any) -> None:
    pending = pending_tick(sender)
    if pending is None or not isinstance(headers, dict):
        return
    # The header may be the entry's own object, which must not change.
    there = headers.get(HEADER)
    ours = dict(there) if isinstance(there, Mapping) else {"nonce": fresh_nonce()}
    headers[HEADER] = {**ours, "tick": pending.tick.write()}
    pending.sent = True
