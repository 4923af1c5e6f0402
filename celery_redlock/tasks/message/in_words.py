"""
Errors about locks as people read them: without the keys that only this package has.
"""

from __future__ import annotations

import re
from typing import TypeVar

from celery_redlock.core import Lease, Redlock
from celery_redlock.errors import LockContended, LockNotAcquired, QuorumUnavailable
from celery_redlock.protocol.keys import is_rate, owner_label
from celery_redlock.protocol.texts import readable, shortened
from celery_redlock.tasks.message.node_keys import MARKER_DIGITS, MESSAGE, QUEUED, RUNNING

__all__ = ["in_words", "lease_in_words", "lock_key_of", "reason_of", "sentence"]

_Error = TypeVar("_Error", bound=LockContended | QuorumUnavailable)

_marker = re.compile(rf"Lock '{MESSAGE}[0-9a-f]{{{MARKER_DIGITS}}}'(?P<held> is held by)?")


def lock_key_of(redlock: Redlock, key: str | None) -> str | None:
    """Return the lock key that a key in an error is about; None for a dedupe marker."""
    if key is None or key.startswith(MESSAGE):
        return None
    for kind in (QUEUED, RUNNING):
        if key.startswith(kind):
            return redlock.user_key(key.removeprefix(kind))
    return key


def lease_in_words(lease: Lease) -> str:
    """Return the name of what a lease of a task is about, to follow "its"."""
    return "marker" if lease.key.startswith(MESSAGE) else f"lock {shortened(lease.key)}"


def in_words(error: _Error, redlock: Redlock) -> _Error:
    """
    Return an error whose message names lock keys only.

    Its `key` is what was held, as the rules ask for it; a stop request key counts as its lock key.
    """
    message = _without_reserved_keys(error.message, redlock)
    _, key, *details = error.args
    if isinstance(error, QuorumUnavailable):
        key = lock_key_of(redlock, key)
    elif key is not None and key.startswith(RUNNING):
        key = lock_key_of(redlock, key)
        details[3] = [held for held in error.keys if not held.startswith(RUNNING)]
    return type(error)(message, key, *details)


def _without_reserved_keys(message: str, redlock: Redlock) -> str:
    prefix = redlock.settings.key_prefix
    message = message.replace(QUEUED + prefix, "").replace(RUNNING + prefix, "")
    return _marker.sub(_other_delivery, message)


def _other_delivery(found: re.Match[str]) -> str:
    return "Another delivery has this message:" if found["held"] else "The marker of this message"


def reason_of(error: LockNotAcquired, redlock: Redlock) -> str:
    """Return in one clause why a task does not have its lock, to follow a colon."""
    if isinstance(error, LockContended) and is_rate(error.key) and not error.split:
        turn = readable(error.expires_in or 0.0)
        return f"lock {shortened(error.key)!r} has its next turn in {turn} s"
    if isinstance(error, LockContended) and error.holder and not error.split:
        key, holder = lock_key_of(redlock, error.key), shortened(owner_label(error.holder))
        if key is None:
            return f"another delivery has this message: {holder!r}"
        return f"lock {shortened(key)!r} is held by {holder!r}"
    message = _without_reserved_keys(error.message, redlock)
    return message[:1].lower() + message[1:]


def sentence(clause: str) -> str:
    """Return a clause as a sentence of its own."""
    return f"{clause[:1].upper()}{clause[1:].rstrip('.')}."
