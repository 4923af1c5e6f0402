"""
`lock_mode`: from when to when a task holds its key.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MODES", "Mode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """
    The properties of one value of `lock_mode`.

    Attributes:
        name: the value.
        at_publish: the publisher acquires the lock, which travels with the message.
        in_body: the body runs under the lock, with a lease and a fencing token.
        own_queue_key: a queued message holds a key of its own, so that one task may be queued while
            another runs.
        for_window: the key stays taken for `lock_window`, also after the body has ended.
    """

    name: str
    at_publish: bool = True
    in_body: bool = True
    own_queue_key: bool = False
    for_window: bool = False

    @property
    def waits_at_run(self) -> bool:
        """Whether a worker may find the lock held by a task that is not a duplicate."""
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
