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
from celery_redlock.tasks.messages.envelope import Envelope
from celery_redlock.tasks.messages.owners import Owner
from celery_redlock.tasks.messages.tick import Tick

__all__ = [
    "about_key",
    "companion_place",
    "digest_of",
    "does_same_work",
    "mark_for",
    "mark_of_digest",
]
__all__ += ["message_place", "piece_of", "publish_places", "queue_place", "tick_place"]

# Under the reserved prefix, where no lock key of a user can be.
QUEUED = META_PREFIX + "queued:"
MESSAGE = META_PREFIX + "message:"
RUNNING = META_PREFIX + "running:"
MESSAGE_DIGITS = 32
#: So much of a mark's name tells two ticks apart that contend for one lock.
PIECE_DIGITS = 12


def queue_place(redlock: Redlock, key: str) -> str:
    """Return the place of a message that waits for lock `key` without excluding its holder."""
    return QUEUED + redlock.node_key(key)


def companion_place(place: str) -> str:
    """Return the place beside a lock's whose loss asks its holder to stop, and frees nothing."""
    return RUNNING + place


def about_key(error: LockContended, redlock: Redlock) -> LockContended:
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


def publish_places(redlock: Redlock, rules: Mode, keys: Iterable[str]) -> tuple[str, ...]:
    """Return what a task of this mode takes when it is sent; nothing if it does not."""
    if not rules.at_publish:
        return ()
    if rules.own_queue_key:
        return tuple(queue_place(redlock, key) for key in keys)
    return tuple(redlock.node_key(key) for key in keys)


def does_same_work(
    redlock: Redlock, places: Collection[str], name: str, error: LockContended, holder: Owner | None
) -> bool:
    """Return whether a holder runs the same task with all these places, not only some of them."""
    if holder is not None and not holder.runs(name):
        return False
    return len(places) == 1 or {redlock.user_key(place) for place in places} <= set(error.keys)


def mark_for(
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
        return tick_place(redlock, envelope.tick, name=name, retries=retries, nesting=nesting)
    return message_place(
        redlock,
        task_id=task_id,
        name=name,
        retries=retries,
        nesting=nesting,
        nonce=envelope.nonce,
    )


def digest_of(mark: str) -> str:
    """Return what tells a mark from others, as owner values and headers carry it."""
    return mark.removeprefix(MESSAGE)


def mark_of_digest(digest: str) -> str:
    """Return the place of a mark."""
    return MESSAGE + digest


def message_place(
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
    return _mark(redlock.key_prefix, task_id, name, retries, nesting, nonce)


def tick_place(redlock: Redlock, tick: Tick, *, name: str, retries: int, nesting: int) -> str:
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
    return _mark(
        redlock.key_prefix, "tick", tick.schedule, tick.entry, tick.due_us, name, retries, nesting
    )


def piece_of(redlock: Redlock, tick: Tick, *, name: str) -> str:
    """Return what the owner values of a tick's messages say, also of retries and replacements."""
    mark = tick_place(redlock, tick, name=name, retries=0, nesting=0)
    return mark.removeprefix(MESSAGE)[:PIECE_DIGITS]


def _mark(*identity: Any) -> str:
    return MESSAGE + hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:MESSAGE_DIGITS]
