"""
What leaders and workers do, by the shipped code, one step at a time.

`ScheduleState` and `Register` run as they are; only the transport below them is ours.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from celery_redlock.beat.leader_record import LEADER_FIELD, LeaderInfo
from celery_redlock.beat.schedule_state import ScheduleState
from celery_redlock.core import Register, VersionedValue
from celery_redlock.errors import QuorumUnavailable, StaleFencingToken
from celery_redlock.protocol.keys import register_key
from celery_redlock.protocol.votes import Vote
from celery_redlock.tasks.message.node_keys import tick_dedupe_key
from celery_redlock.tasks.message.tick import Tick
from celery_redlock.tasks.ticks.entry_state import EntryState, is_superseded
from evidence.models.stepper import Paused, Stage

#: The schedule has one entry, of one task.
ENTRY = "e"
SCHEDULE = "beat"
TASK = "task"

RECORD = register_key("p:", SCHEDULE)

SECOND = 1_000_000

#: The token of a leader from before.
EARLIER = 1


@dataclass(frozen=True, slots=True)
class Memory:
    """What a leader remembers of its schedule."""

    states: tuple[tuple[str, EntryState], ...]
    unwritten: tuple[tuple[str, tuple[int, str]], ...]

    @property
    def state(self) -> EntryState:
        """How far the entry has come."""
        return dict(self.states)[ENTRY]


_SETTINGS = types.SimpleNamespace(node_timeout=1.0, key_prefix="p:")


def client_on(transport: Any) -> Any:
    """Return as much of a client as a register needs."""
    return types.SimpleNamespace(
        transport=transport, node_names=transport.names, settings=_SETTINGS
    )


def records_of(token: int, stage: Stage, memory: Memory | None = None) -> ScheduleState:
    """Make the records that a leader has in hand."""
    records = ScheduleState(
        Register(client_on(stage), SCHEDULE),
        token,
        pause=0.0,
        now=lambda: 0.0,
        wall=lambda: float(stage.wall),
    )
    if memory is not None:
        records._states = dict(memory.states)
        records._unwritten = dict(memory.unwritten)
    return records


def _memory_of(records: ScheduleState) -> Memory:
    return Memory(
        tuple(sorted(records._states.items())),
        tuple(sorted(records._unwritten.items())),
    )


def run_claim(token: int, stage: Stage, *, repeats: bool) -> tuple[str, Memory | None]:
    """Take office; return how it ended (claimed, stale, unavailable), or `waits`."""
    records = records_of(token, stage)
    leader = LeaderInfo(host=str(token), pid=1, since=0.0, token=token)
    try:
        records.claim(leader)
    except Paused:
        return "waits", None
    except StaleFencingToken:
        return "stale", None
    except QuorumUnavailable:
        return "unavailable", None
    if repeats:
        records._repeat()
    # A note for people, which no leader acts upon: one write less to explore.
    records._unwritten.pop(LEADER_FIELD, None)
    if records.entry_state(ENTRY) is None:
        # A scheduler begins entries that it has never seen with the present.
        records.record_start(ENTRY, float(stage.wall), 0)
    return "claimed", _memory_of(records)


def run_write(token: int, memory: Memory, stage: Stage) -> tuple[str, Memory]:
    """Record what was noted; return how it ended (written, stale, unavailable), or `waits`."""
    records = records_of(token, stage, memory)
    try:
        records.write()
    except Paused:
        return "waits", memory
    except StaleFencingToken:
        return "stale", memory
    then = _memory_of(records)
    return "unavailable" if then.unwritten else "written", then


def note_sent(token: int, memory: Memory, due: int, stage: Stage) -> Memory:
    """Note that a tick has been sent."""
    records = records_of(token, stage, memory)
    records.record_sent(ENTRY, float(due))
    return _memory_of(records)


def tick_of(token: int, due: int) -> Tick:
    """Return what a message of a leader carries."""
    return Tick(entry=ENTRY, due=float(due), schedule=SCHEDULE, token=token)


def mark_of(tick: Tick) -> str:
    """Return the place that all messages of a tick share."""
    return tick_dedupe_key(_PREFIXED, tick, name=TASK)


_PREFIXED: Any = types.SimpleNamespace(settings=_SETTINGS)


class Answers:
    """A transport on which some nodes answer at once, and no more are needed."""

    def __init__(self, votes: Iterable[Vote], count: int) -> None:
        self.names = tuple(f"node {index}" for index in range(count))
        self._votes = tuple(votes)

    def checkout(self) -> Answers:
        return self

    def connect(self) -> None: ...

    def checkin(self, channel: object) -> None: ...

    def discard(self, channel: object) -> None: ...

    def exchange(self, batch: Any, timeout: float) -> None:
        [(_, round_)] = batch
        for node, vote in enumerate(self._votes):
            round_.vote(node, vote, 0.0)


def arrive(tick: Tick, votes: Iterable[Vote], count: int) -> tuple[bool, VersionedValue | None]:
    """Read the register as a worker does; return whether the tick is late, and what it saw."""
    register = Register(client_on(Answers(votes, count)), SCHEDULE)
    recorded = register.read([ENTRY]).get(ENTRY)
    return is_superseded(tick, recorded), recorded
