"""
The state of an entry that a leader records on the lock nodes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from celery_redlock.tasks.message.header_values import END_OF_TIME
from celery_redlock.tasks.message.tick import Tick

if TYPE_CHECKING:
    from celery_redlock.core import VersionedValue

__all__ = ["EntryState", "is_superseded"]

#: Changes of leadership that a message may lag behind and still be recognized as superseded.
MAX_TAKEOVERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryState:
    """
    The last run of an entry.

    The record's version is `due_us`, so that of two records of one leader the later tick stays.

    Attributes:
        due: the due time of the last tick that was sent, in seconds since the epoch.
        ran_at: when it was sent.
        count: how often the entry was sent.
        takeovers: for each leader that took the entry over, its fencing token and, in microseconds
            since the epoch, the last tick before it; oldest first, at most `MAX_TAKEOVERS`.
    """

    due: float
    ran_at: float
    count: int
    takeovers: tuple[tuple[int, int], ...] = ()

    @property
    def due_us(self) -> int:
        """When the last tick was due, in microseconds since the epoch."""
        return round(self.due * 1_000_000)

    def after(
        self, due: float, ran_at: float, *, token: int, previous_token: int | None
    ) -> EntryState:
        """
        Return the state once another tick has been sent.

        Args:
            due: the tick's due time, in seconds since the epoch.
            ran_at: when it was sent.
            token: the fencing token of the leader that sent it.
            previous_token: the token of the leader that recorded this state; None if no leader
                did, and the new leader began with it.
        """
        takeovers = self.takeovers
        if token != previous_token:
            takeovers = (*takeovers, (token, self.due_us))[-MAX_TAKEOVERS:]
        return EntryState(due=due, ran_at=ran_at, count=self.count + 1, takeovers=takeovers)

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Read what `write` wrote; None if it cannot be read."""
        try:
            found = json.loads(text)
            return cls(
                due=_moment(found["due"]),
                ran_at=_moment(found["ran_at"]),
                count=int(found["count"]),
                takeovers=tuple((int(token), int(base)) for token, base in found["takeovers"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
            return None

    def write(self) -> str:
        """Return the text to record."""
        content = {
            "due": self.due,
            "ran_at": self.ran_at,
            "count": self.count,
            "takeovers": self.takeovers,
        }
        return json.dumps(content, separators=(",", ":"))


def is_superseded(tick: Tick, recorded: VersionedValue | None) -> bool:
    """
    Return whether a newer leader is responsible for a tick that an older one sent.

    It is responsible for each tick after the one that it found recorded when it took over: it sends
    these ticks itself, or lets them collapse into one. A message of an older leader for them is one
    too many.
    """
    if tick.token is None or recorded is None or recorded.token <= tick.token:
        return False
    state = EntryState.read(recorded.text)
    if state is None:
        return False
    bases = (base for token, base in state.takeovers if token > tick.token)
    base = next(bases, None)
    return base is not None and tick.due_us > base


def _moment(value: Any) -> float:
    moment = float(value)
    if not 0 <= moment <= END_OF_TIME:
        raise ValueError(f"{value!r} is no time")
    return moment
