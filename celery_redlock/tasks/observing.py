"""
The task that runs here, nodes that do not serve, and notes about leases, for `observe`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from celery._state import get_current_task

from celery_redlock.core.instrumentation import AcquireDetails

Note = TypeVar("Note")

#: Most notes that are kept: the note of a lease dropped without a release is never taken.
MOST_LEASES = 10_000


def nodes_without_service(details: AcquireDetails) -> list[str]:
    """Return the nodes that failed in the last attempt, or were quarantined."""
    return [node for node, vote in details.votes.items() if vote in ("failed", "quarantined")]


def running_task_name() -> str:
    """Return the name of the task that runs in this thread or greenlet; empty if none does."""
    return getattr(get_current_task(), "name", None) or ""


class LeaseNotes(Generic[Note]):
    """
    One note about each lease, from its acquire to its loss or release.

    Limit: beyond `MOST_LEASES` the oldest notes are dropped. Usable from any thread.
    """

    def __init__(self) -> None:
        self._notes: OrderedDict[str, Note] = OrderedDict()

    def add(self, owner: str, note: Note) -> None:
        """Keep a note of the lease with this owner value."""
        self._notes[owner] = note
        if len(self._notes) > MOST_LEASES:
            self._notes.popitem(last=False)

    def take(self, owner: str) -> Note | None:
        """Return the note of a lease, once; None where there is none."""
        return self._notes.pop(owner, None)
