"""
A worker that stands still where a message's lock is its own and the key not yet given up.

Nothing of the package tells of that moment, so it is stopped from inside.
"""

from __future__ import annotations

from collections.abc import Sequence

from celery_redlock import Lease
from tests.acceptance.apps.visible import await_gate, note

give_up = Lease.give_up


def give_up_later(lease: Lease, places: Sequence[str]) -> None:
    key = places[0].rpartition(":")[2]
    note(key, "adopted")
    await_gate(key, "give up")
    give_up(lease, places)


Lease.give_up = give_up_later  # type: ignore[method-assign]
