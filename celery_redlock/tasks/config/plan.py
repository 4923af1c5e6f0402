"""
The lock plan of a task that is bound to its app.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from celery_redlock.tasks.border import AppLike
from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.keys.key_maker import KeyMaker


@dataclass(frozen=True, slots=True, kw_only=True)
class LockPlan:
    """
    The lock of a task.

    Attributes:
        options: checked lock options.
        keys: makes the lock keys of a call; None for a task without lock options, which only has
            its messages deduplicated (`redlock_dedupe`).
        lost_signal: the signal that interrupts a body in the main thread.
        dedupe: whether `redlock_dedupe` is on.
    """

    options: LockOptions
    keys: KeyMaker | None
    lost_signal: int
    dedupe: bool = False

    @property
    def marks_messages(self) -> bool:
        """
        Whether each message has a dedupe marker, by which workers recognise its redeliveries.

        Such a task holds its keys until Celery has stored the result and sent the callbacks. A
        redelivery that ran earlier would send them a second time.
        """
        return self.dedupe or self.options.mode_spec.at_publish


def plans_with_keys(app: AppLike) -> Iterator[tuple[str, LockPlan, KeyMaker]]:
    """Iterate over the tasks of an app that have lock keys, by name, with plan and keys."""
    for name, task in sorted(app.tasks.items()):
        plan = getattr(task, "redlock_plan", None)
        if plan is not None and plan.keys is not None:
            yield name, plan, plan.keys
