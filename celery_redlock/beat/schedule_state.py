"""
The state of a schedule: what its leader records on the lock nodes about the entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType

from celery_redlock._log import event_logger
from celery_redlock.beat.leader_record import LEADER_FIELD, LeaderInfo
from celery_redlock.core import Register, VersionedValue
from celery_redlock.errors import LockKeyError, QuorumUnavailable
from celery_redlock.protocol.keys import validate_name
from celery_redlock.protocol.timing import MAX_TOKEN
from celery_redlock.tasks.message.tick import Tick
from celery_redlock.tasks.ticks.entry_state import EntryState

logger = event_logger(__name__)

#: Seconds. A recorded due time further ahead than this came from a wrong clock, and is replaced.
#: The beat waits for a nearer one, since the wrong clock may be its own.
MAX_AHEAD = 86_400.0
#: Seconds. Synchronized clocks are set back by less.
CLOCK_STEP = 1.0
#: Seconds. An entry that left the schedule may return and should then continue.
KEPT_AFTER_REMOVAL = 100 * 86_400.0
#: Seconds. A schedule that makes entries for one run each must not fill the nodes.
KEPT_AFTER_ONE_RUN = 86_400.0
#: Seconds. A node that has lost its data has all records again before the next one is restarted, as
#: its quarantine lasts that long by default.
REPEATED_AFTER = 60.0
#: Records that one write repeats: they fit into one command, so that a pass stays short.
REPEATED_AT_ONCE = 400
#: Seconds since the epoch: in microseconds, the largest version that the register accepts.
LATEST_DUE = float(MAX_TOKEN // 1_000_000)
MAX_LISTED = 5


class ScheduleState:
    """
    The last run of each entry: read once, kept in memory, and written after each tick.

    All records are written again after the claim and then once a minute, some with each write, for
    nodes that have lost them.

    Guarantee: once `claim` has returned, this object has everything that earlier leaders wrote, and
    no earlier leader can write any more. If a quorum answers, `write` returns when everything
    recorded is on a quorum of nodes. Limit: the next leader sends a tick again that was sent but
    not yet written.

    Args:
        register: the schedule's register.
        token: the leader's fencing token.
        pause: seconds between two writes while no quorum answers.
        now: reads a monotonic clock.
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
        self._unwritten: dict[str, tuple[int, str] | None] = {}
        self._leader_text = ""
        self._to_repeat: list[str] = []
        self._repeat_at = math.inf
        self._latest_sent = 0.0
        self._latest_wall = 0.0
        self._is_set_back = False
        self._unavailable_since: float | None = None
        self._write_at = now()

    def claim(
        self,
        leader: LeaderInfo,
        remembered: Mapping[str, VersionedValue] = MappingProxyType({}),
    ) -> LeaderInfo | None:
        """
        Read all entries, and shut out all earlier leaders.

        Args:
            leader: the beat that leads now, for `celery-redlock beat`.
            remembered: the `records` of this beat's last leadership, for nodes that have lost them.

        Returns:
            The previous leader, if there was one.

        Raises:
            StaleFencingToken: there is a newer leader.
            QuorumUnavailable: too few lock nodes answered; nothing was read.
        """
        found = self._register.claim(self._token)
        last = found.pop(LEADER_FIELD, None)
        led_until = max((own.token for own in remembered.values()), default=0)
        # Another beat that has led since may have removed entries.
        if last is None or last.token <= led_until:
            for entry, own in remembered.items():
                if entry not in found or found[entry].rank < own.rank:
                    found[entry] = own
        for entry, versioned in found.items():
            self._take_over(entry, versioned)
        self._warn_if_ahead()
        self._leader_text = leader.write()
        self._repeat_at = self._now()
        return None if last is None else LeaderInfo.read(last.text)

    def __len__(self) -> int:
        return len(self._states)

    def records(self) -> dict[str, VersionedValue]:
        """Return what this leader has recorded, or would, on the nodes."""
        return {
            entry: VersionedValue(self._token, state.version, state.write())
            for entry, state in self._states.items()
        }

    def entry_state(self, entry: str) -> EntryState | None:
        """Return the state of an entry; None if none is recorded."""
        return self._states.get(entry)

    @property
    def is_in_future(self) -> bool:
        """Return whether this clock was set back, to more than a day before the last tick sent."""
        return self._latest_sent > self._wall() + MAX_AHEAD

    def warn_if_clock_set_back(self) -> None:
        """Log once that this clock shows an earlier time than when the last tick was sent."""
        behind = self._latest_wall - self._wall()
        if behind <= 0:
            self._is_set_back = False
        elif behind > CLOCK_STEP and not self._is_set_back:
            self._is_set_back = True
            logger.warning(
                "beat-clock-set-back",
                "The clock of this host was set back by %(seconds).1f s or more. No tick is sent "
                "again, and none is due until the clock has caught up",
                seconds=behind,
            )

    def record_start(self, entry: str, last_run_at: float, count: int) -> None:
        """Record the last run of an entry that has no record, so the next leader begins there."""
        due = min(max(0.0, last_run_at), LATEST_DUE)
        base = EntryState(due=due, ran_at=due, count=count, token=self._token)
        self._note(entry, replace(base, takeovers=((self._token, base.due_us),)))

    def record_sent(self, entry: str, due: float) -> None:
        """Record that the tick of an entry was sent, with all its messages."""
        before = self._states.get(entry) or EntryState(due=due, ran_at=due, count=0)
        now = self._wall()
        self._latest_sent = max(self._latest_sent, due)
        self._latest_wall = max(self._latest_wall, now)
        self._note(entry, before.after(due, now, token=self._token))

    def record_part(self, entry: str, tick: Tick) -> None:
        """Record that one message of a tick was sent, and that more may follow."""
        before = self._states.get(entry)
        if before is not None:
            self._note(entry, before.with_part(tick, token=self._token))

    def note_schedule(self, scheduled: Container[str]) -> None:
        """
        Note which entries have left the schedule or returned to it.

        Entries that left it and did not run for a hundred days are forgotten; those that have run
        at most once after a day.

        Args:
            scheduled: the names of the entries in the schedule.
        """
        now = self._wall()
        for entry, state in list(self._states.items()):
            kept = KEPT_AFTER_REMOVAL if state.count > 1 else KEPT_AFTER_ONE_RUN
            if entry not in scheduled and max(state.due, state.ran_at) < now - kept:
                del self._states[entry]
                if _is_valid_name(entry):
                    self._unwritten[entry] = None
            elif (entry in scheduled) != state.is_scheduled:
                # The state's token stays: this is no tick, and must not supersede ticks of an
                # earlier leader.
                self._note(entry, state.scheduled(now if entry in scheduled else None))

    def write(self, *, at_once: bool = False) -> None:
        """
        Write what changed since the last write, and repeat some other records if it is time to.

        The next call repeats what no quorum accepted.

        Args:
            at_once: write even if no quorum answered a moment ago.

        Raises:
            StaleFencingToken: there is a newer leader; this beat must not write any more.
        """
        if self._now() < self._write_at and not at_once:
            return
        self._repeat()
        if not self._unwritten:
            return
        writing = dict(self._unwritten)
        try:
            self._register.write(self._token, writing)
        except QuorumUnavailable as exc:
            # Each write waits for the nodes; doing so at each entry would delay the schedule.
            self._write_at = self._now() + self._pause
            self._log_unavailable(exc)
            return
        for entry, field in writing.items():
            if self._unwritten.get(entry) == field:
                del self._unwritten[entry]
        self._log_available()

    def _repeat(self) -> None:
        now = self._now()
        if now >= self._repeat_at and not self._to_repeat:
            self._repeat_at = now + REPEATED_AFTER
            self._unwritten[LEADER_FIELD] = (0, self._leader_text)
            self._to_repeat = list(self._states)
        entries = self._to_repeat[:REPEATED_AT_ONCE]
        del self._to_repeat[:REPEATED_AT_ONCE]
        for entry in entries:
            state = self._states.get(entry)
            if state is not None:
                self._note(entry, state)

    def _take_over(self, entry: str, versioned: VersionedValue) -> None:
        state = EntryState.read(versioned)
        if state is None:
            logger.warning(
                "beat-record-unreadable",
                "The record of entry %(entry)r cannot be read and is replaced",
                entry=entry,
            )
        elif state.due > self._wall() + MAX_AHEAD:
            logger.warning(
                "beat-record-in-future",
                "Entry %(entry)r is recorded as sent for %(due)s, more than a day ahead: the "
                "clock of this host or of an earlier leader was wrong. The record is replaced",
                entry=entry,
                due=datetime.fromtimestamp(state.due, UTC),
            )
        else:
            self._states[entry] = state

    def _note(self, entry: str, state: EntryState) -> None:
        self._states[entry] = state
        if _is_valid_name(entry):
            self._unwritten[entry] = (state.version, state.write())

    def _warn_if_ahead(self) -> None:
        now = self._wall()
        ahead = {entry: state.due - now for entry, state in self._states.items() if state.due > now}
        if not ahead:
            return
        listed = ", ".join(sorted(ahead, key=lambda entry: -ahead[entry])[:MAX_LISTED])
        logger.warning(
            "beat-clock-behind-leader",
            "The clock of this host is behind that of the last leader, which sent %(count)d "
            "entries for due times up to %(seconds).1f s ahead. They are not sent again before "
            "those times (%(entries)s)",
            count=len(ahead),
            seconds=max(ahead.values()),
            entries=listed,
        )

    def _log_unavailable(self, exc: QuorumUnavailable) -> None:
        if self._unavailable_since is None:
            self._unavailable_since = self._now()
            logger.warning(
                "beat-ticks-not-recorded",
                "The ticks that were sent cannot be recorded: %(error)s Each pass tries again",
                error=exc,
            )

    def _log_available(self) -> None:
        if self._unavailable_since is not None:
            away = self._now() - self._unavailable_since
            self._unavailable_since = None
            logger.warning(
                "beat-ticks-recorded-again",
                "The ticks that were sent are recorded again, after %(seconds).1f s",
                seconds=away,
            )


def _is_valid_name(entry: str) -> bool:
    """Return whether the register accepts an entry's name, which can be anything."""
    try:
        validate_name(entry, "The name of an entry")
    except LockKeyError:
        return False
    return True
