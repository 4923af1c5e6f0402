"""
What the lock nodes know about the entries of a schedule, as its leader keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace
from datetime import UTC, datetime

from celery.utils.log import get_logger

from celery_redlock.beat.leader_record import LEADER_FIELD, LeaderInfo
from celery_redlock.core import Register, VersionedValue
from celery_redlock.errors import LockKeyError, QuorumUnavailable
from celery_redlock.protocol import MAX_TOKEN
from celery_redlock.protocol.keys import validate_name
from celery_redlock.tasks.ticks.entry_state import EntryState

__all__ = ["ScheduleState"]

logger = get_logger(__name__)

#: Seconds. What is recorded further ahead than this was recorded by a clock that was wrong, and
#: nobody can wait for it. What is nearer is waited for: it may be this clock that is wrong.
MAX_AHEAD = 86_400.0
#: Seconds. Clocks that are kept right are set back by less.
CLOCK_STEP = 1.0
#: Seconds. An entry that left the schedule may come back, and should go on then; but a schedule
#: whose entries are made for one run each must not fill the nodes.
KEPT_AFTER_REMOVAL = 100 * 86_400.0
#: Seconds since the epoch; microseconds of it are the largest version that the register takes.
LATEST_DUE = float(MAX_TOKEN // 1_000_000)
MAX_LISTED = 5


class ScheduleState:
    """
    How far each entry has come: read once, kept here, and written after each tick.

    Guarantee: once `claim` has returned, it has what every earlier leader wrote, and no earlier
    leader can write any more. What was noted is on a quorum of nodes when `write` has returned.
    Limit: a tick that was sent and not yet written is sent again by the next leader.

    Args:
        register: the schedule's register.
        token: the leader's fencing token.
        pause: seconds between two writes while no quorum answers.
        now: reads a clock that does not step.
        wall: reads the wall clock.
    """

    def __init__(
        self,
        register: Register,
        token: int,
        *,
        pause: float,
        now: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._register = register
        self._token = token
        self._pause = pause
        self._now = now
        self._wall = wall
        self._states: dict[str, EntryState] = {}
        self._writers: dict[str, int] = {}
        self._unwritten: dict[str, tuple[int, str] | None] = {}
        self._latest_sent = 0.0
        self._latest_wall = 0.0
        self._is_set_back = False
        self._unavailable_since: float | None = None
        self._write_at = now()

    def claim(self, leader: LeaderInfo) -> LeaderInfo | None:
        """
        Read everything, and shut out all earlier leaders.

        Args:
            leader: who leads now, for whoever looks.

        Returns:
            Who led last, if anybody did.

        Raises:
            StaleFencingToken: there is a newer leader.
            QuorumUnavailable: too few lock nodes answered; nothing is known.
        """
        found = self._register.claim(self._token)
        last = found.pop(LEADER_FIELD, None)
        for entry, versioned in found.items():
            self._take_over(entry, versioned)
        self._warn_if_ahead()
        self._unwritten[LEADER_FIELD] = (0, leader.write())
        return None if last is None else LeaderInfo.read(last.text)

    def __len__(self) -> int:
        return len(self._states)

    def entry_state(self, entry: str) -> EntryState | None:
        """Return how far an entry has come; None where nothing is known."""
        return self._states.get(entry)

    @property
    def is_in_future(self) -> bool:
        """Tell whether this clock has been set back so far that what was sent is in the future."""
        return self._latest_sent > self._wall() + MAX_AHEAD

    def warn_if_clock_set_back(self) -> None:
        """Say once that this clock is behind where it was when something was sent."""
        behind = self._latest_wall - self._wall()
        if behind <= 0:
            self._is_set_back = False
        elif behind > CLOCK_STEP and not self._is_set_back:
            self._is_set_back = True
            logger.warning(
                "The clock of this host was set back by %.1f s or more. What was sent before is "
                "not sent again, and nothing else is due until the clock has come so far again",
                behind,
            )

    def record_start(self, entry: str, last_run_at: float, count: int) -> None:
        """Note where an entry stands that has no record, so that the next leader begins there."""
        due = min(max(0.0, last_run_at), LATEST_DUE)
        base = EntryState(due=due, ran_at=due, count=count)
        self._note(entry, replace(base, takeovers=((self._token, base.due_us),)))

    def record_sent(self, entry: str, due: float) -> None:
        """Note that the tick of an entry has been sent."""
        before = self._states.get(entry) or EntryState(due=due, ran_at=due, count=0)
        writer = self._writers.get(entry)
        now = self._wall()
        state = before.after(due, now, token=self._token, previous_token=writer)
        self._latest_sent = max(self._latest_sent, due)
        self._latest_wall = max(self._latest_wall, now)
        self._note(entry, state)

    def forget_removed(self, scheduled: Container[str]) -> None:
        """
        Forget entries that have left the schedule and did not run for a hundred days.

        Args:
            scheduled: the names of the entries that there are.
        """
        oldest = self._wall() - KEPT_AFTER_REMOVAL
        for entry, state in list(self._states.items()):
            if entry not in scheduled and max(state.due, state.ran_at) < oldest:
                del self._states[entry], self._writers[entry]
                if _is_valid_name(entry):
                    self._unwritten[entry] = None

    def write(self, *, at_once: bool = False) -> None:
        """
        Write what was noted since the last time. What no quorum took stays noted.

        Args:
            at_once: do not spare nodes that did not answer a moment ago.

        Raises:
            StaleFencingToken: there is a newer leader; nothing of this is of any use now.
        """
        if not self._unwritten or (self._now() < self._write_at and not at_once):
            return
        writing = dict(self._unwritten)
        try:
            self._register.write(self._token, writing)
        except QuorumUnavailable as exc:
            # Each try waits for the nodes, which the schedule has no time for at each entry.
            self._write_at = self._now() + self._pause
            self._log_unavailable(exc)
            return
        for entry, field in writing.items():
            if self._unwritten.get(entry) == field:
                del self._unwritten[entry]
        self._log_available()

    def _take_over(self, entry: str, versioned: VersionedValue) -> None:
        state = EntryState.read(versioned.text)
        if state is None:
            logger.warning("What is recorded of entry %r makes no sense and is replaced", entry)
        elif state.due > self._wall() + MAX_AHEAD:
            logger.warning(
                "Entry %r is recorded as sent for %s, which is more than a day ahead: a clock was "
                "wrong, here or where that was recorded. The record is replaced",
                entry,
                datetime.fromtimestamp(state.due, UTC),
            )
        else:
            self._states[entry] = state
            self._writers[entry] = versioned.token

    def _note(self, entry: str, state: EntryState) -> None:
        self._states[entry] = state
        self._writers[entry] = self._token
        if _is_valid_name(entry):
            self._unwritten[entry] = (state.due_us, state.write())

    def _warn_if_ahead(self) -> None:
        now = self._wall()
        ahead = {entry: state.due - now for entry, state in self._states.items() if state.due > now}
        if not ahead:
            return
        listed = ", ".join(sorted(ahead, key=lambda entry: -ahead[entry])[:MAX_LISTED])
        logger.warning(
            "The clock of this host is behind that of the last leader: %d entries were sent up to "
            "%.1f s ahead of it, and are not sent again before that time (%s)",
            len(ahead),
            max(ahead.values()),
            listed,
        )

    def _log_unavailable(self, exc: QuorumUnavailable) -> None:
        if self._unavailable_since is None:
            self._unavailable_since = self._now()
            logger.warning(
                "What the schedule has sent cannot be recorded: %s Tried again in each pass", exc
            )

    def _log_available(self) -> None:
        if self._unavailable_since is not None:
            away = self._now() - self._unavailable_since
            self._unavailable_since = None
            logger.warning("What the schedule has sent is recorded again, after %.1f s", away)


def _is_valid_name(entry: str) -> bool:
    """Tell whether the nodes can be told of an entry; its name can be anything."""
    try:
        validate_name(entry, "The name of an entry")
    except LockKeyError:
        return False
    return True
