"""
What a task class was found to want when it was bound to its app.
"""

from __future__ import annotations

from dataclasses import dataclass

from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.keys.key_maker import KeyMaker

__all__ = ["LockPlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockPlan:
    """
    How a task locks.

    Attributes:
        options: its checked lock options.
        keys: makes the lock keys of a call; None for a task that knows nothing of locks, and is
            only kept from running a message twice (`redlock_dedupe`).
        lost_signal: the signal that interrupts a body in the main thread.
        dedupe: `redlock_dedupe` is on.
    """

    options: LockOptions
    keys: KeyMaker | None
    lost_signal: int
    dedupe: bool = False

    @property
    def marks_messages(self) -> bool:
        """
        Whether each message gets a mark, by which its copies are known.

        What such a task holds, it holds until Celery has stored the result and sent on what
        follows; a copy that came earlier would send it a second time.
        """
        return self.dedupe or self.options.mode_spec.at_publish
