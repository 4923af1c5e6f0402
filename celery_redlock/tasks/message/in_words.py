"""
Errors about locks as people read them: without the keys that only this package has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar, cast

from celery_redlock.core import Lease
from celery_redlock.core.failures import Refusal
from celery_redlock.errors import LockContended, LockNotAcquired, QuorumUnavailable
from celery_redlock.protocol.keys import Key, owner_label
from celery_redlock.protocol.texts import readable, shortened
from celery_redlock.tasks.message.node_keys import MARKER_DIGITS, MESSAGE, QUEUED, RUNNING

_Error = TypeVar("_Error", bound=LockContended | QuorumUnavailable)

_marker = re.compile(rf"Lock '{MESSAGE}[0-9a-f]{{{MARKER_DIGITS}}}'(?P<held> is held by)?")


def lock_key_of(key: str | None) -> str | None:
    """Return the lock key that an error is about; None for a dedupe marker."""
    return None if key is None or key.startswith(MESSAGE) else key


def lease_in_words(lease: Lease) -> str:
    """Return the words for a task's lease that follow "its" in a text."""
    return "marker" if lease.key.startswith(MESSAGE) else f"lock {shortened(lease.key)}"


def in_words(error: _Error) -> _Error:
    """
    Return an error whose message names lock keys only.

    Its `key` is still the marker that was held, because the rules ask for it; a stop request is
    replaced by the lock whose holder it asks to stop.
    """
    message = _without_records(error.message)
    if isinstance(error, QuorumUnavailable):
        if message == error.message:
            return error
        _, key, *details = error.args
        return type(error)(message, lock_key_of(key), *details)
    refusal = Refusal.of(error)
    asks_to_stop = refusal.key is not None and refusal.key.stored.startswith(RUNNING)
    if message == error.message and not asks_to_stop:
        return error
    if refusal.key is not None and asks_to_stop:
        lock = Key.read(refusal.key.stored.removeprefix(RUNNING))
        refusal = replace(
            refusal,
            key=replace(lock, text=refusal.key.text),
            keys=_without_stop_requests(refusal.keys),
            refused=_without_stop_requests(refusal.refused),
        )
    return cast(_Error, refusal.error(message, error.key, error.nodes))


def _without_stop_requests(keys: Iterable[Key]) -> tuple[Key, ...]:
    return tuple(key for key in keys if not key.stored.startswith(RUNNING))


def _without_records(message: str) -> str:
    message = message.replace(QUEUED, "").replace(RUNNING, "")
    return _marker.sub(_other_delivery, message)


def _other_delivery(found: re.Match[str]) -> str:
    return "Another delivery has this message:" if found["held"] else "The marker of this message"


def reason_of(error: LockNotAcquired) -> str:
    """Return in one clause why a task does not have its lock, to follow a colon."""
    if isinstance(error, LockContended) and not error.split:
        refusal, turn = Refusal.of(error), readable(error.expires_in or 0.0)
        if refusal.is_paused:
            return f"lock {shortened(error.key or '')!r} is paused for {turn} s more"
        if refusal.is_rate:
            return f"lock {shortened(error.key or '')!r} has its next turn in {turn} s"
        if error.holder:
            key, holder = lock_key_of(error.key), shortened(owner_label(error.holder))
            if key is None:
                return f"another delivery has this message: {holder!r}"
            return f"lock {shortened(key)!r} is held by {holder!r}"
    message = _without_records(error.message)
    return message[:1].lower() + message[1:]


def sentence(clause: str) -> str:
    """Return a clause as a sentence of its own."""
    return f"{clause[:1].upper()}{clause[1:].rstrip('.')}."
