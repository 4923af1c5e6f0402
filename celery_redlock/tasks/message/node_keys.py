"""
The node keys of a task: of its locks, its queued messages, its dedupe markers and stop requests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable
from typing import Any

from celery_redlock.core import Client
from celery_redlock.core.failures import Refusal
from celery_redlock.protocol.keys import META_PREFIX, Key, given_back
from celery_redlock.tasks.config.option_values import Mode
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.message.owner_label import TaskOwner
from celery_redlock.tasks.message.tick import Tick

# Under the reserved prefix, which no lock key of a user can have.
QUEUED = META_PREFIX + "queued:"
MESSAGE = META_PREFIX + "message:"
RUNNING = META_PREFIX + "running:"
MARKER_DIGITS = 32
#: Enough digits of a tick's marker to distinguish ticks that contend for one lock.
TICK_ID_DIGITS = 12


def queue_key(key: Key) -> Key:
    """Return the record of a message that is queued for a lock while another task runs."""
    return key.as_record(QUEUED)


def stop_request_key(key: Key) -> Key:
    """Return the record that a newer call takes to ask the holder of a lock to stop."""
    return Key.record(RUNNING + key.stored, key.text)


def stop_request_keys(keys: Iterable[Key]) -> tuple[Key, ...]:
    """Return the records by which the only holder of each key is asked to stop."""
    return tuple(stop_request_key(key) for key in keys if not key.is_shared)


def publish_keys(mode: Mode, keys: Iterable[Key]) -> tuple[Key, ...]:
    """
    Return the keys that the publisher of a task acquires; none if the mode does not.

    A key with a rate counts calls if the publisher acquires it, and starts if the worker does.
    """
    if not mode.at_publish:
        return ()
    if mode.own_queue_key:
        return tuple(map(queue_key, given_back(keys)))
    return tuple(keys)


def does_same_work(
    keys: Collection[Key], name: str, refusal: Refusal, holder: TaskOwner | None
) -> bool:
    """
    Return whether a holder runs the same task and holds all these keys, not only some.

    One of several holders of a key does not do the work of a further call.
    """
    if holder is None or not holder.runs(name) or refusal.is_shared:
        return False
    own = {key for key in keys if not key.is_shared}
    if keys and not own:
        return False
    return len(keys) == 1 or own <= set(refusal.keys)


def dedupe_key_for(
    client: Client,
    envelope: Envelope,
    *,
    task_id: str,
    name: str,
    retries: int = 0,
    nesting: int = 0,
) -> str:
    """
    Return the node key of a message's dedupe marker, which shows whether it runs or has run.

    It is that of its tick, if a schedule sent it. Otherwise all deliveries and requeues of a
    message have the same key. A retry and a replacement have another one.

    Args:
        client: the app's client; apps with different key prefixes have different keys.
        envelope: the message's own; its nonce distinguishes publishes of one task id.
        task_id: the message's task id.
        name: the task's name.
        retries: how often it has been retried.
        nesting: how often it has been replaced.
    """
    if envelope.tick is not None:
        return tick_dedupe_key(client, envelope.tick, name=name, retries=retries, nesting=nesting)
    prefix = client.settings.key_prefix
    return _dedupe_key(prefix, task_id, name, retries, nesting, envelope.nonce)


def marker_of(dedupe_key: str) -> str:
    """Return the digest in a dedupe key, as owner values and headers contain it."""
    return dedupe_key.removeprefix(MESSAGE)


def dedupe_key_of(digest: str) -> str:
    """Return the dedupe key with this digest."""
    return MESSAGE + digest


def tick_dedupe_key(
    client: Client, tick: Tick, *, name: str, retries: int = 0, nesting: int = 0
) -> str:
    """
    Return the node key of a tick's dedupe marker, which shows whether it runs or has run.

    The messages of all beats for one tick have the same key, whatever their task ids.

    Args:
        client: the app's client; apps with different key prefixes have different keys.
        tick: the schedule, the entry, its due time, and the part.
        name: the task's name.
        retries: how often it has been retried.
        nesting: how often it has been replaced.
    """
    prefix = client.settings.key_prefix
    part = () if tick.part is None else (tick.part,)
    return _dedupe_key(
        prefix, "tick", tick.schedule, tick.entry, tick.due_us, name, retries, nesting, *part
    )


def tick_id_of(client: Client, tick: Tick, *, name: str) -> str:
    """Return the id of a tick in owner values, also in those of retries and replacements."""
    return marker_of(tick_dedupe_key(client, tick, name=name))[:TICK_ID_DIGITS]


def _dedupe_key(*identity: Any) -> str:
    return MESSAGE + hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:MARKER_DIGITS]
