"""
Ticks: the moments at which the entries of a schedule are due.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from celery_redlock.protocol.timing import MAX_TOKEN
from celery_redlock.schedules.timeutils import SECOND, from_us
from celery_redlock.tasks.message.header_values import given, read_moment, read_text

#: Longest name of an entry or a schedule, in characters. The nodes store records under these names.
MAX_NAME_LENGTH = 1000
#: Longest time from one tick of an entry to the next in a message, in seconds.
LONGEST_INTERVAL = 366 * 86_400.0
#: Enough digits to distinguish the messages of one tick.
PART_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """
    An entry of a schedule and a moment at which it was due.

    All beats that send the entry for this moment name the same tick, so workers recognise their
    messages as copies of one.

    Attributes:
        entry: the entry's name in the schedule.
        due: when it was due, in seconds since the epoch, exact to a microsecond.
        schedule: name of the entry's schedule: `redlock_beat_key`, or a name made from the app's.
            Leaders store their record on the lock nodes under this name.
        token: fencing token of the leader that sent the tick; None from an ordinary beat.
        until: when the entry's next tick is due, in seconds since the epoch, or a year after this
            one if that is not known. A beat that was down may send the tick until then.
        part: distinguishes the messages of one tick, where a scheduler sends an entry several
            times; None in most messages. Each part runs once.
    """

    entry: str
    due: float
    schedule: str = ""
    token: int | None = None
    until: float | None = None
    part: str | None = None

    @property
    def due_us(self) -> int:
        """When it was due, in microseconds since the epoch."""
        return round(self.due * SECOND)

    @property
    def due_at(self) -> datetime:
        """When it was due, in UTC."""
        return from_us(self.due_us)

    @classmethod
    def read(cls, value: Any) -> Self | None:
        """Read the result of `write`; values that make no sense count as absent."""
        if not isinstance(value, Mapping):
            return None
        entry, due = read_text(value.get("entry"), MAX_NAME_LENGTH), read_moment(value.get("due"))
        if entry is None or due is None:
            return None
        token = value.get("token")
        return cls(
            entry=entry,
            due=due,
            schedule=read_text(value.get("schedule"), MAX_NAME_LENGTH) or "",
            token=token if type(token) is int and 1 <= token <= MAX_TOKEN else None,
            until=read_moment(value.get("until")),
            part=read_text(value.get("part"), PART_DIGITS),
        )

    def write(self) -> dict[str, Any]:
        """Return the tick in the form of the message header."""
        return given(
            {
                "entry": self.entry,
                "due": self.due,
                "schedule": self.schedule or None,
                "token": self.token,
                "until": self.until,
                "part": self.part,
            }
        )
