"""
The node keys of a task: of its locks, its queued messages, its dedupe markers and stop requests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable
from typing import Any

from celery_redlock.core import Redlock
from celery_redlock.errors import LockContended
from celery_redlock.protocol.keys import (
    META_PREFIX,
    LimitedKey,
    is_rate,
    stored_under,
    without_rates,
)
from celery_redlock.tasks.config.modes import Mode
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.message.owner_label import TaskOwner
from celery_redlock.tasks.message.tick import Tick

__all__ = [
    "dedupe_key_for",
    "dedupe_key_of",
    "does_same_work",
    "is_limit",
    "marker_of",
    "stop_request_key",
]
__all__ += ["message_dedupe_key", "publish_keys", "queue_key", "tick_dedupe_key", "tick_id_of"]

# Under the reserved prefix, which no lock key of a user can have.
QUEUED = META_PREFIX + "queued:"
MESSAGE = META_PREFIX + "message:"
RUNNING = META_PREFIX + "running:"
MARKER_DIGITS = 32
#: Enough digits of a tick's marker to distinguish ticks that contend for one lock.
TICK_ID_DIGITS = 12


def queue_key(redlock: Redlock, key: str) -> str:
    """Return the node key of a message that is queued for lock `key` while another task runs."""
    return stored_under(QUEUED + redlock.node_key(str(key)), key)


def stop_request_key(node_key: str) -> str:
    """Return the node key by which a newer run requests the holder of a lock to stop."""
    return RUNNING + node_key


def publish_keys(redlock: Redlock, mode: Mode, keys: Iterable[str]) -> tuple[str, ...]:
    """
    Return the node keys that the publisher of a task acquires; none if the mode does not.

    A key with a rate counts what takes the lock: a call, or a start where the worker takes it.
    """
    if not mode.at_publish:
        return ()
    if mode.own_queue_key:
        return tuple(queue_key(redlock, key) for key in without_rates(keys))
    return tuple(redlock.node_key(key) for key in keys)


def is_limit(key: str | None) -> bool:
    """Return whether several may hold a key, so that none of them does the work of a call."""
    return is_rate(key) or (isinstance(key, LimitedKey) and key.slots > 1)


def does_same_work(
    redlock: Redlock,
    node_keys: Collection[str],
    name: str,
    error: LockContended,
    holder: TaskOwner | None,
) -> bool:
    """
    Return whether a holder runs the same task and holds all these keys, not only some.

    One of several holders of a key does not do the work of a further call.
    """
    if holder is None or not holder.runs(name) or is_limit(error.key):
        return False
    ordinary = {redlock.user_key(node_key) for node_key in node_keys if not is_limit(node_key)}
    if node_keys and not ordinary:
        return False
    return len(node_keys) == 1 or ordinary <= set(error.keys)


def dedupe_key_for(
    redlock: Redlock,
    envelope: Envelope,
    *,
    task_id: str,
    name: str,
    retries: int = 0,
    nesting: int = 0,
) -> str:
    """Return the node key of a message's dedupe marker: of its tick, if a schedule sent it."""
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
    """Return the digest in a dedupe key, as owner values and headers contain it."""
    return dedupe_key.removeprefix(MESSAGE)


def dedupe_key_of(digest: str) -> str:
    """Return the dedupe key with this digest."""
    return MESSAGE + digest


def message_dedupe_key(
    redlock: Redlock, *, task_id: str, name: str, retries: int, nesting: int, nonce: str
) -> str:
    """
    Return the node key of a message's dedupe marker, which shows whether it runs or has run.

    All deliveries and requeues of a message have the same key. A retry and a replacement have
    another one.

    Args:
        redlock: the client; apps with different key prefixes have different keys.
        task_id: the message's task id.
        name: the task's name.
        retries: how often it has been retried.
        nesting: how often it has been replaced.
        nonce: distinguishes publishes of one task id.
    """
    return _dedupe_key(redlock.settings.key_prefix, task_id, name, retries, nesting, nonce)


def tick_dedupe_key(redlock: Redlock, tick: Tick, *, name: str, retries: int, nesting: int) -> str:
    """
    Return the node key of a tick's dedupe marker, which shows whether it runs or has run.

    The messages of all beats for one tick have the same key, whatever their task ids.

    Args:
        redlock: the client; apps with different key prefixes have different keys.
        tick: the schedule, the entry, its due time, and the part.
        name: the task's name.
        retries: how often it has been retried.
        nesting: how often it has been replaced.
    """
    prefix = redlock.settings.key_prefix
    part = () if tick.part is None else (tick.part,)
    return _dedupe_key(
        prefix, "tick", tick.schedule, tick.entry, tick.due_us, name, retries, nesting, *part
    )


def tick_id_of(redlock: Redlock, tick: Tick, *, name: str) -> str:
    """Return the id of a tick in owner values, also in those of retries and replacements."""
    dedupe_key = tick_dedupe_key(redlock, tick, name=name, retries=0, nesting=0)
    return dedupe_key.removeprefix(MESSAGE)[:TICK_ID_DIGITS]


def _dedupe_key(*identity: Any) -> str:
    return MESSAGE + hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:MARKER_DIGITS]
