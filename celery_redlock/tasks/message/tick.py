"""
One moment at which an entry of a schedule is due.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from celery_redlock.tasks.message.header_values import read_moment, read_text

__all__ = ["LONGEST_INTERVAL", "Tick"]

LARGEST_TOKEN = 2**53 - 1
#: Of an entry or a schedule, in characters. Nodes are asked for their records under these names.
MAX_NAME_BYTES = 1000
#: From one tick of an entry to the next, in seconds, as far as messages tell it.
LONGEST_INTERVAL = 366 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """
    What a message was sent for: an entry of a schedule and the moment at which it was due.

    Every beat that sends the entry for this moment names the same tick, so a worker knows that
    their messages are copies of one.

    Attributes:
        entry: the entry's name in the schedule.
        due: when it was due, in seconds since the epoch, exact to a microsecond.
        schedule: whose entry it is: `redlock_beat_key`, or a name made from the app's. A leader
            keeps its record on the lock nodes under this name.
        token: that leader's fencing token; None from an ordinary beat.
        until: when the entry's next tick is due, in seconds since the epoch, where that is known,
            or a year after this one. So long a beat that was down may catch this one up.
    """

    entry: str
    due: float
    schedule: str = ""
    token: int | None = None
    until: float | None = None

    @property
    def due_us(self) -> int:
        """When it was due, in microseconds since the epoch."""
        return round(self.due * 1_000_000)

    @property
    def due_at(self) -> datetime:
        """When it was due, in UTC."""
        # Not from the float, which fromtimestamp() may round to another microsecond.
        seconds, microseconds = divmod(self.due_us, 1_000_000)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds)

    @classmethod
    def read(cls, value: Any) -> Self | None:
        """Read what `write` wrote; what does not make sense is as good as absent."""
        if not isinstance(value, Mapping):
            return None
        entry, due = read_text(value.get("entry"), MAX_NAME_BYTES), read_moment(value.get("due"))
        if entry is None or due is None:
            return None
        token = value.get("token")
        return cls(
            entry=entry,
            due=due,
            schedule=read_text(value.get("schedule"), MAX_NAME_BYTES) or "",
            token=token if type(token) is int and 1 <= token <= LARGEST_TOKEN else None,
            until=read_moment(value.get("until")),
        )

    def write(self) -> dict[str, Any]:
        """Return the tick as a message carries it."""
        written: dict[str, Any] = {"entry": self.entry, "due": self.due}
        if self.schedule:
            written["schedule"] = self.schedule
        if self.token is not None:
            written["token"] = self.token
        if self.until is not None:
            written["until"] = self.until
        return written
