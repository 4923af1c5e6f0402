"""
From when to when a task holds its key (`lock_mode`).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MODES", "Mode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """
    One value of `lock_mode`.

    Attributes:
        name: as it is written in `lock_mode`.
        at_publish: a lock is taken when the task is sent, and travels with its message.
        in_body: the body runs under the lock, and has a lease and a fencing token.
        own_queue_key: the message's lock is on a key of its own, so that one task may wait while
            another runs.
        for_window: the key stays taken for `lock_window`, whenever the body ends.
    """

    name: str
    at_publish: bool = True
    in_body: bool = True
    own_queue_key: bool = False
    for_window: bool = False

    @property
    def waits_at_run(self) -> bool:
        """Whether the worker may find the lock taken by a task that is no duplicate."""
        return not self.at_publish or self.own_queue_key


MODES = {
    mode.name: mode
    for mode in (
        Mode(name="while_executing", at_publish=False),
        Mode(name="until_executing", in_body=False),
        Mode(name="until_executed"),
        Mode(name="until_and_while_executing", own_queue_key=True),
        Mode(name="until_expired", for_window=True),
    )
}
