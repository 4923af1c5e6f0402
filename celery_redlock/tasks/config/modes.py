"""
`lock_mode`: when a task's key is taken and released.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


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
        for_window: the key stays taken for `lock_window`, even after the body has ended.
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

    @property
    def held_in_body(self) -> bool:
        """Whether a task has the key of its publisher while its body runs, not only until then."""
        return self.in_body and not self.own_queue_key

    def uses(self, option: str) -> bool:
        """Return whether an option, named without prefix, has an effect in this mode."""
        return _USES[option](self) if option in _USES else True


_USES: dict[str, Callable[[Mode], bool]] = {
    "window": lambda mode: mode.for_window,
    "at_least_for": lambda mode: mode.in_body and not mode.for_window,
    "on_conflict": lambda mode: mode.waits_at_run,
    "on_duplicate": lambda mode: mode.at_publish,
    "queue_ttl": lambda mode: mode.at_publish and not mode.for_window,
    "max_hold": lambda mode: mode.in_body,
    "on_lost": lambda mode: mode.in_body,
}


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
