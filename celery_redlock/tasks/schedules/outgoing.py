"""
The tick of the message that is being sent.

A task is sent in many ways: by its own `apply_async`, with a lock, by name only. Here is where all
of them come together, just before the message is published.
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

__all__ = ["Outgoing", "carrying", "carrying_nothing", "connect_publishes"]
__all__ += ["outgoing_owns_id", "outgoing_tick"]


@dataclass(slots=True)
class Outgoing:
    """
    A tick that waits for the message of its task.

    Attributes:
        task: the task's name.
        tick: what its message is to carry.
        owns_id: whether the message's id was made for the tick, so that nobody else counts on it.
        sent: whether the message has come by.
    """

    task: str
    tick: Tick
    owns_id: bool = False
    sent: bool = False


_outgoing: ContextVar[Outgoing | None] = ContextVar("celery_redlock_outgoing", default=None)


@contextmanager
def carrying(task: str, tick: Tick, *, owns_id: bool = False) -> Iterator[Outgoing]:
    """Give the tick to the first message of `task` that is sent meanwhile in this context."""
    outgoing = Outgoing(task, tick, owns_id)
    token = _outgoing.set(outgoing)
    try:
        yield outgoing
    finally:
        _outgoing.reset(token)


@contextmanager
def carrying_nothing() -> Iterator[None]:
    """Keep what is sent meanwhile from being taken for the entry's own message."""
    token = _outgoing.set(None)
    try:
        yield
    finally:
        _outgoing.reset(token)


def outgoing_tick(task: str) -> Tick | None:
    """Return the tick that waits for the message of `task`."""
    outgoing = _waiting_for(task)
    return None if outgoing is None else outgoing.tick


def outgoing_owns_id(task: str) -> bool:
    """Tell whether the id of the message of `task` is the scheduler's, which nobody waits for."""
    outgoing = _waiting_for(task)
    return outgoing is not None and outgoing.owns_id


def _waiting_for(task: str) -> Outgoing | None:
    outgoing = _outgoing.get()
    if outgoing is None or outgoing.sent or outgoing.task != task:
        return None
    return outgoing


def connect_publishes() -> None:
    """Have every publish of this process ask for its tick. Idempotent."""
    signals.before_task_publish.connect(
        _add_tick, weak=False, dispatch_uid="celery_redlock.schedules.before_task_publish"
    )


def _add_tick(sender: Any = "", headers: Any = None, **_: Any) -> None:
    tick, outgoing = outgoing_tick(sender), _outgoing.get()
    if tick is None or outgoing is None or not isinstance(headers, dict):
        return
    # What is there may be the entry's own, of which no copy was made.
    there = headers.get(HEADER)
    ours = dict(there) if isinstance(there, Mapping) else {"nonce": fresh_nonce()}
    headers[HEADER] = {**ours, "tick": tick.write()}
    outgoing.sent = True
