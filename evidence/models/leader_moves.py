"""
What a leader may do: win the lease and claim, choose a tick, send it, record it, take answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache

from celery_redlock.protocol.votes import RegisterContents, Vote
from celery_redlock.tasks.ticks.entry_state import EntryState
from evidence.models import leader_steps
from evidence.models.copies import Told
from evidence.models.exchange import Talk, took
from evidence.models.explorer import Label
from evidence.models.leader_steps import EARLIER, ENTRY, Memory
from evidence.models.leaders import LeaderSetting
from evidence.models.ledger import NOTHING, Leadership
from evidence.models.state import NAMES, Lane, Tables
from evidence.models.stepper import Stage


def token_of(index: int) -> int:
    """Return the fencing token of a leader: each newer than all before."""
    return EARLIER + 1 + index


@dataclass(frozen=True, slots=True)
class LeaderMove:
    """
    A step of a leader.

    Attributes:
        label: how it reads.
        part: the leader then.
        lanes: its connections then; None: as before.
        sends: the tick that it sends.
        claimed: it has learnt what was recorded.
        gives_up: it has stopped to wait for answers.
    """

    label: Label
    part: int
    lanes: tuple[int, ...] | None = None
    sends: int = 0
    claimed: bool = False
    gives_up: bool = False


@dataclass(slots=True)
class LeaderMoves:
    """The steps of leaders, each kind taken once."""

    _setting: LeaderSetting
    _tables: Tables
    _reached: set[str]
    _talk: Talk = field(init=False)
    of: Callable[[int, int, int, tuple[int, ...]], list[LeaderMove]] = field(init=False)

    def __post_init__(self) -> None:
        self._talk = Talk(self._tables, hands_over=False)
        self.of = cache(lambda *now: list(self._find(*now)))

    def _find(
        self, index: int, number: int, time: int, lanes: tuple[int, ...]
    ) -> Iterator[LeaderMove]:
        """
        Yield what a leader may do now.

        Args:
            index: which.
            number: where it stands.
            time: the clock.
            lanes: its connections.
        """
        leader: Leadership = self._tables.parts.things[number]
        name, token = NAMES[index], token_of(index)
        stage = Stage(self._setting.nodes, 0.0, time)
        if leader.stands == "idle":
            leader_steps.run_claim(token, stage, repeats=self._setting.repeats)
            then = replace(leader, stands="claims")
            text = f"{name} wins the lease with token {token} and claims"
            yield self._move(text, then, self._talk.said(stage, lanes))
        elif leader.stands in ("claims", "writes"):
            yield from self._answered(index, leader, time, lanes)
        elif leader.stands == "chose":
            assert leader.memory is not None
            memory = leader_steps.note_sent(token, leader.memory, leader.due, stage)
            then = replace(leader, stands="leads", memory=memory, due=0, attempted=False)
            yield self._move(f"{name} sends the tick of {leader.due} s", then, sends=leader.due)
        elif leader.stands == "leads":
            assert leader.memory is not None
            quiet = not any(self._tables.lanes.things[lane].under_way for lane in lanes)
            if leader.memory.unwritten and (not leader.attempted or quiet):
                leader_steps.run_write(token, leader.memory, stage)
                then = replace(leader, stands="writes", attempted=False)
                yield self._move(f"{name} records", then, self._talk.said(stage, lanes))
            # What is unwritten is tried before each pass and after it.
            waits = leader.memory.unwritten and not leader.attempted
            if not waits and leader.memory.state.due < time:
                then = replace(leader, stands="chose", due=time)
                yield self._move(f"{name} is about to send the tick of {time} s", then)

    def _answered(
        self, index: int, leader: Leadership, time: int, lanes: tuple[int, ...]
    ) -> Iterator[LeaderMove]:
        seen = set()
        may_give_up = bool(self._setting.gives_up)
        for feed, gives_up in self._talk.feeds(lanes, may_give_up, itertools.combinations):
            stage = Stage(self._setting.nodes, 0.0, time)
            votes = [told.vote() if isinstance(told, Told) else told for _, told, _ in feed]
            stage.feed = tuple(zip((node for node, _, _ in feed), votes, strict=True))
            stage.gives_up = gives_up
            end, memory = self._run(index, leader, stage)
            if stage.decided != (0 if gives_up else len(feed)):
                continue  # not enough to decide, or fewer decide the same
            doing = leader.stands.removesuffix("s")
            self._reached.add(f"{doing}: {end}")
            then = self._after(leader, end, memory, votes)
            text, positions = took(NAMES[index], feed, gives_up)
            if (then, gives_up) not in seen:
                seen.add((then, gives_up))
                yield LeaderMove(
                    (f"{text}: {end}", positions),
                    self._tables.parts.number(then),
                    self._nothing_left if self._setting.at_once else self._talk.said(stage, lanes),
                    claimed=end == "claimed",
                    gives_up=gives_up,
                )

    @property
    def _nothing_left(self) -> tuple[int, ...]:
        return (self._tables.lanes.number(Lane()),) * self._setting.nodes

    def _run(self, index: int, leader: Leadership, stage: Stage) -> tuple[str, Memory | None]:
        if leader.stands == "claims":
            return leader_steps.run_claim(token_of(index), stage, repeats=self._setting.repeats)
        assert leader.memory is not None
        return leader_steps.run_write(token_of(index), leader.memory, stage)

    def _after(
        self, leader: Leadership, end: str, memory: Memory | None, votes: list[Vote]
    ) -> Leadership:
        if end == "claimed":
            assert memory is not None
            told = [vote.fields.get(ENTRY) for vote in votes if isinstance(vote, RegisterContents)]
            if len(set(told)) > 1:
                self._reached.add("claim: nodes differ")
            state = memory.state
            # Where nothing was found it has begun the entry itself.
            ranks = [one.rank for one in told if one is not None and EntryState.read(one) == state]
            found = max(ranks, default=NOTHING)
            return Leadership("leads", memory, found, state.due_us)
        if end in ("written", "unavailable") and memory is not None:
            return replace(leader, stands="leads", memory=memory, attempted=end == "unavailable")
        return replace(leader, stands="over", due=0, attempted=False)

    def _move(
        self, text: str, then: Leadership, lanes: tuple[int, ...] | None = None, sends: int = 0
    ) -> LeaderMove:
        return LeaderMove((text, ()), self._tables.parts.number(then), lanes, sends)
