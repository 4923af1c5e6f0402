"""
A lock that belongs to a message on its way instead of a process.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """
    A lock that nobody renews; who gets the message takes it over by compare-and-set.

    Guarantee: while it stands on a quorum, nobody but the message's receiver gets the lock. Limit:
    nodes that lose their data forget it, and then the lock may be taken by somebody else; that ends
    in one task more than wanted, never in two holders at once.

    Attributes:
        node_keys: its lock keys as they stand on the nodes, prefix included.
        owner: the value that marks it there.
        expires_at: when it ends by itself, in seconds since the epoch.
    """

    node_keys: tuple[str, ...]
    owner: str
    expires_at: float

    def left_ms(self, wall_us: int) -> int:
        """Return how long it has left at an instant of the wall clock, in milliseconds."""
        return max(0, round(self.expires_at * 1000 - wall_us / 1000))
