"""
The names under which a task's locks and marks stand on the nodes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable
from typing import Any

from celery_redlock.core import Redlock
from celery_redlock.errors import LockContended
from celery_redlock.protocol.keys import META_PREFIX
from celery_redlock.tasks.config.modes import Mode
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.message.owner_label import TaskOwner
from celery_redlock.tasks.message.tick import Tick

__all__ = [
    "dedupe_key_for",
    "dedupe_key_of",
    "does_same_work",
    "marker_of",
    "stop_request_key",
    "with_user_key",
]
__all__ += ["message_dedupe_key", "publish_keys", "queue_key", "tick_dedupe_key", "tick_id_of"]

# Under the reserved prefix, where no lock key of a user can be.
QUEUED = META_PREFIX + "queued:"
MESSAGE = META_PREFIX + "message:"
RUNNING = META_PREFIX + "running:"
MARKER_DIGITS = 32
#: So much of a mark's name tells two ticks apart that contend for one lock.
TICK_ID_DIGITS = 12


def queue_key(redlock: Redlock, key: str) -> str:
    """Return the place of a message that waits for lock `key` without excluding its holder."""
    return QUEUED + redlock.node_key(key)


def stop_request_key(node_key: str) -> str:
    """Return the place beside a lock's whose loss asks its holder to stop, and frees nothing."""
    return RUNNING + node_key


def with_user_key(error: LockContended, redlock: Redlock) -> LockContended:
    """Return an error that names a lock by its key, where it names it by its companion."""
    companion = error.key or ""
    if not companion.startswith(RUNNING):
        return error
    key = redlock.user_key(companion.removeprefix(RUNNING))
    return LockContended(
        error.message.replace(repr(companion), repr(key)),
        key,
        error.holder,
        error.expires_in,
        error.split,
        [held for held in error.keys if not held.startswith(RUNNING)],
    )


def publish_keys(redlock: Redlock, mode: Mode, keys: Iterable[str]) -> tuple[str, ...]:
    """Return what a task of this mode takes when it is sent; nothing if it does not."""
    if not mode.at_publish:
        return ()
    if mode.own_queue_key:
        return tuple(queue_key(redlock, key) for key in keys)
    return tuple(redlock.node_key(key) for key in keys)


def does_same_work(
    redlock: Redlock,
    node_keys: Collection[str],
    name: str,
    error: LockContended,
    holder: TaskOwner | None,
) -> bool:
    """Return whether a holder runs the same task with all these places, not only some of them."""
    if holder is not None and not holder.runs(name):
        return False
    return len(node_keys) == 1 or {redlock.user_key(node_key) for node_key in node_keys} <= set(
        error.keys
    )


def dedupe_key_for(
    redlock: Redlock,
    envelope: Envelope,
    *,
    task_id: str,
    name: str,
    retries: int = 0,
    nesting: int = 0,
) -> str:
    """Return the place of a message's mark: that of its tick, where a schedule has sent it."""
    if envelope.tick is not None:
        return tick_dedupe_key(redlock, envelope.tick, name=name, retries=retries, nesting=nesting)
    return message_dedupe_key(
        redlock,
        task_id=task_id,
        name=name,
        retries=retries,
        nesting=nesting,
        nonce=envelope.nonce,
    )


def marker_of(dedupe_key: str) -> str:
    """Return what tells a mark from others, as owner values and headers carry it."""
    return dedupe_key.removeprefix(MESSAGE)


def dedupe_key_of(digest: str) -> str:
    """Return the place of a mark."""
    return MESSAGE + digest


def message_dedupe_key(
    redlock: Redlock, *, task_id: str, name: str, retries: int, nesting: int, nonce: str
) -> str:
    """
    Return the place that tells whether this very message is being worked on, or has been.

    The same for every copy that the broker delivers and for every copy that was put back: they are
    the same piece of work. A retry and a replacement are the next piece.

    Args:
        redlock: the client; two apps with different prefixes do not meet.
        task_id: the message's task id.
        name: the task's name.
        retries: how often it has been retried.
        nesting: how often it has been replaced.
        nonce: tells publishes with one task id apart.
    """
    return _dedupe_key(redlock.key_prefix, task_id, name, retries, nesting, nonce)


def tick_dedupe_key(redlock: Redlock, tick: Tick, *, name: str, retries: int, nesting: int) -> str:
    """
    Return the place that tells whether this tick is being worked on, or has been.

    The same for the messages of all beats that have sent it, whatever their task ids.

    Args:
        redlock: the client; two apps with different prefixes do not meet.
        tick: the schedule, the entry and its due time.
        name: the task's name.
        retries: how often it has been retried.
        nesting: how often it has been replaced.
    """
    return _dedupe_key(
        redlock.key_prefix, "tick", tick.schedule, tick.entry, tick.due_us, name, retries, nesting
    )


def tick_id_of(redlock: Redlock, tick: Tick, *, name: str) -> str:
    """Return what the owner values of a tick's messages say, also of retries and replacements."""
    dedupe_key = tick_dedupe_key(redlock, tick, name=name, retries=0, nesting=0)
    return dedupe_key.removeprefix(MESSAGE)[:TICK_ID_DIGITS]


def _dedupe_key(*identity: Any) -> str:
    return MESSAGE + hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:MARKER_DIGITS]
