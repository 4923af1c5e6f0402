"""
A worker that pauses after it has acquired a message's lock, and before it releases the key.

Nothing outside the worker sees that moment, so the pause is inside.
"""

from __future__ import annotations

from collections.abc import Sequence

from celery_redlock import Lease
from tests.acceptance.apps.visible import await_gate, note

release_keys = Lease.release_keys


def release_keys_later(lease: Lease, node_keys: Sequence[str]) -> None:
    key = node_keys[0].rpartition(":")[2]
    note(key, "adopted")
    await_gate(key, "give up")
    release_keys(lease, node_keys)


Lease.release_keys = release_keys_later  # type: ignore[method-assign]
