"""
A lock that belongs to a message on its way, not to a process.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Self

from celery_redlock.errors import LockContended
from celery_redlock.protocol.keys import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """
    A lock that no process extends; the message's receiver takes it over by compare-and-set.

    Guarantee: while a quorum has it, only the message's receiver acquires the lock. Limit: nodes
    that lose their data forget it, and another owner may acquire the lock; that makes one task more
    than wanted, never two holders at once.

    Attributes:
        node_keys: its lock keys as nodes store them, prefix included.
        owner: the value that marks it there.
        expires_at: when it expires, in seconds since the epoch.
    """

    node_keys: tuple[str, ...]
    owner: str
    expires_at: float

    @classmethod
    def of_holder(cls, error: LockContended, node_keys: tuple[str, ...]) -> Self:
        """Return what the holder that is in the way has of these keys."""
        until = time.time() + (error.expires_in or 0.0)
        return cls(node_keys=node_keys, owner=error.holder or "", expires_at=until)

    @property
    def keys(self) -> tuple[Key, ...]:
        """Its keys, and slots of keys with a limit; `LockKeyError` if a name can be neither."""
        return tuple(map(Key.read, self.node_keys))

    def left_ms(self, wall_us: int) -> int:
        """Return how long it has left at an instant of the wall clock, in milliseconds."""
        return max(0, round(self.expires_at * 1000 - wall_us / 1000))
