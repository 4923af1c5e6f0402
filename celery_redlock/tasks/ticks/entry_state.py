"""
The state of an entry that a leader records on the lock nodes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from celery_redlock.schedules.timeutils import SECOND, from_us
from celery_redlock.tasks.message.header_values import END_OF_TIME
from celery_redlock.tasks.message.tick import Tick

if TYPE_CHECKING:
    from celery_redlock.core import VersionedValue

#: Most changes of leadership after which a message is still recognized as superseded.
MAX_TAKEOVERS = 16
#: Most messages of one tick that are recorded while it is sent; a record has to stay small.
MAX_PARTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryState:
    """
    The last run of an entry.

    Attributes:
        due: the due time of the last tick that was sent whole, in seconds since the epoch.
        ran_at: when it was sent.
        count: how often the entry was sent.
        takeovers: for each leader that took the entry over, its fencing token and the last tick
            before it (microseconds since the epoch); oldest first, at most `MAX_TAKEOVERS`.
        begun_us: when a later tick was due of which some but not all messages were sent, in
            microseconds since the epoch: a scheduler may send several for a tick. 0 if there is
            none.
        begun_parts: the parts of its messages that were sent, "" for the message without a part;
            at most `MAX_PARTS`.
        returned_at: when the entry returned to the schedule after the last tick, in seconds since
            the epoch: no tick before that was missed. `END_OF_TIME` while it is not in the
            schedule, 0 if it never left.
        step: counts the records since the last tick that was sent whole.
        token: the fencing token of the leader that recorded the last tick; None if no leader has
            recorded one.
    """

    due: float
    ran_at: float
    count: int
    takeovers: tuple[tuple[int, int], ...] = ()
    begun_us: int = 0
    begun_parts: tuple[str, ...] = ()
    returned_at: float = 0.0
    step: int = 0
    token: int | None = None

    @property
    def due_us(self) -> int:
        """When the last tick was due, in microseconds since the epoch."""
        return round(self.due * SECOND)

    @property
    def last_due(self) -> datetime | None:
        """When the last tick was due, in UTC; None if the entry was never sent."""
        return from_us(self.due_us) if self.count else None

    @property
    def last_run(self) -> datetime | None:
        """When the last tick was sent, in UTC; None if the entry was never sent."""
        return from_us(round(self.ran_at * SECOND)) if self.count else None

    @property
    def version(self) -> int:
        """The version of the record, so that of two records of one leader the later one stays."""
        return self.due_us + self.step

    @property
    def is_scheduled(self) -> bool:
        """Whether the entry was in the schedule when it was recorded."""
        return self.returned_at < END_OF_TIME

    def scheduled(self, now: float | None) -> EntryState:
        """Return the state after a return to the schedule at `now`; None: the entry has left it."""
        at = END_OF_TIME if now is None else now
        return replace(self, returned_at=at, step=self.step + 1)

    def has_sent(self, tick: Tick) -> bool:
        """Return whether this message of a tick was sent, before the tick was sent whole."""
        return self.begun_us == tick.due_us and (tick.part or "") in self.begun_parts

    def with_part(self, tick: Tick, *, token: int) -> EntryState:
        """
        Return the state once one message of another tick has been sent.

        Args:
            tick: the tick, as its message carries it.
            token: the fencing token of the leader that sent it.
        """
        sent = self.begun_parts if self.begun_us == tick.due_us else ()
        return replace(
            self,
            begun_us=tick.due_us,
            begun_parts=(*sent, tick.part or "")[:MAX_PARTS],
            takeovers=self._takeovers(token),
            step=self.step + 1,
            token=token,
        )

    def after(self, due: float, ran_at: float, *, token: int) -> EntryState:
        """
        Return the state once another tick has been sent.

        Args:
            due: the tick's due time, in seconds since the epoch.
            ran_at: when it was sent.
            token: the fencing token of the leader that sent it.
        """
        count, takeovers = self.count + 1, self._takeovers(token)
        return EntryState(due=due, ran_at=ran_at, count=count, takeovers=takeovers, token=token)

    def _takeovers(self, token: int) -> tuple[tuple[int, int], ...]:
        if token == self.token:
            return self.takeovers
        # This leader does not repeat the messages of a tick that an earlier leader began.
        last = max(self.due_us, self.begun_us)
        return (*self.takeovers, (token, last))[-MAX_TAKEOVERS:]

    @classmethod
    def read(cls, recorded: VersionedValue) -> Self | None:
        """Read what a leader recorded; None if it cannot be read."""
        try:
            found = json.loads(recorded.text)
            takeovers = tuple((int(token), int(base)) for token, base in found["takeovers"])
            begun = found.get("begun")
            begun_us, parts = (0, ()) if begun is None else begun
            return cls(
                due=_moment(found["due"]),
                ran_at=_moment(found["ran_at"]),
                count=int(found["count"]),
                takeovers=takeovers,
                begun_us=int(begun_us),
                begun_parts=tuple(map(str, parts)),
                returned_at=_moment(found.get("returned_at", 0.0)),
                step=int(found.get("step", 0)),
                # The register's own token is that of the leader that wrote the record last.
                token=takeovers[-1][0] if takeovers else recorded.token,
            )
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
            return None

    def write(self) -> str:
        """Return the text to record, which the register keeps with the leader's token."""
        content: dict[str, Any] = {
            "due": self.due,
            "ran_at": self.ran_at,
            "count": self.count,
            "takeovers": self.takeovers,
        }
        if self.begun_us or self.begun_parts:
            content["begun"] = [self.begun_us, self.begun_parts]
        if self.step:
            content |= {"returned_at": self.returned_at, "step": self.step}
        return json.dumps(content, separators=(",", ":"))


def is_superseded(tick: Tick, recorded: VersionedValue | None) -> bool:
    """
    Return whether a newer leader is responsible for a tick that an older one sent.

    The newer leader is responsible for each tick after the one that it found recorded when it took
    over: it sends these ticks itself, or lets them collapse into one. An older leader's message for
    one of them is one too many.
    """
    if tick.token is None or recorded is None or recorded.token <= tick.token:
        return False
    state = EntryState.read(recorded)
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
