"""
A worker that pauses after it has acquired a message's lock, and before it releases the key.

Nothing outside the worker sees that moment, so the pause is inside.
"""

from __future__ import annotations

from collections.abc import Sequence

from celery_redlock import Lease
from celery_redlock.protocol.keys import Key
from celery_redlock.tasks.run import running_lock
from tests.acceptance.apps.visible import await_gate, note

release_keys = running_lock.release_keys


def release_keys_later(lease: Lease, keys: Sequence[Key]) -> None:
    key = keys[0].stored.rpartition(":")[2]
    note(key, "adopted")
    await_gate(key, "give up")
    release_keys(lease, keys)


running_lock.release_keys = release_keys_later  # type: ignore[attr-defined]
