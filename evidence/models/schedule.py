"""
Leaders, their register on three nodes, and the messages that they send, as states and moves.

A state is a tuple of numbers: the clock with all messages, one column for each node (sorted, as
nodes are alike) and one number for each leader. Every step of shipped code is run once for each
distinct input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache

from celery_redlock.protocol.timing import quorum
from celery_redlock.protocol.votes import VersionedValue
from celery_redlock.tasks.ticks.entry_state import EntryState
from evidence.models import ledger
from evidence.models.arrivals import Arrivals
from evidence.models.copies import Copy, Told, Write, run_command
from evidence.models.explorer import Found, Label, State, ViolationError
from evidence.models.leader_moves import LeaderMoves, token_of
from evidence.models.leader_steps import EARLIER, ENTRY
from evidence.models.leaders import LeaderSetting
from evidence.models.ledger import History, Leadership, Scene
from evidence.models.state import NAMES, Lane, Table, Tables


@dataclass(slots=True)
class Schedule:
    """The model of one setting."""

    setting: LeaderSetting
    reached: set[str] = field(default_factory=set)
    _tables: Tables = field(default_factory=Tables)
    _moves: LeaderMoves = field(init=False)
    _runs: Callable[[int], list[tuple[str, int, bool]]] = field(init=False)
    _writes: Callable[[tuple[int, ...]], frozenset[Write]] = field(init=False)
    _copies: Table = field(default_factory=Table)
    _copy: Callable[[int], int] = field(init=False)
    _arrivals: Arrivals = field(init=False)

    def __post_init__(self) -> None:
        self._arrivals = Arrivals(self._copies, self.reached)
        self._moves = LeaderMoves(self.setting, self._tables, self.reached)
        self._runs = cache(lambda column: list(self._find_runs(column)))
        things = self._tables.columns.things
        self._copy = cache(lambda column: self._copies.number(things[column][0]))
        needed = quorum(self.setting.nodes)
        self._writes = cache(
            lambda columns: ledger.on_a_quorum([things[column][0] for column in columns], needed)
        )

    def initial(self) -> State:
        setting = self.setting
        copy = Copy()
        if setting.recorded:
            state = EntryState(due=0.0, ran_at=0.0, count=1, takeovers=((EARLIER, 0),))
            there = VersionedValue(EARLIER, 0, state.write())
            copy = Copy(EARLIER, ((ENTRY, there),), frozenset({(EARLIER, 0)}))
        lanes = (self._tables.lanes.number(Lane()),) * setting.leaders
        return (
            self._tables.globes.number(Scene(forgets=setting.forgets, gives_up=setting.gives_up)),
            *(self._tables.columns.number((copy, lanes)),) * setting.nodes,
            *(self._tables.parts.number(Leadership()),) * setting.leaders,
        )

    def moves(self, state: State) -> Iterator[Found]:
        nodes = self.setting.nodes
        globe, columns, parts = state[0], state[1 : nodes + 1], state[nodes + 1 :]
        yield from self._node_moves(globe, columns, parts)
        standing = [self._tables.parts.things[part].stands for part in parts]
        if self.setting.at_once and ("claims" in standing or "writes" in standing):
            waits = max(standing.index(at) for at in ("claims", "writes") if at in standing)
            yield from self._leader_moves(globe, columns, parts, [waits])
            return
        yield from self._leader_moves(globe, columns, parts, range(len(parts)))
        yield from self._arriving(globe, columns, parts)
        scene: Scene = self._tables.globes.things[globe]
        if scene.time < self.setting.ticks:
            then = self._tables.globes.number(replace(scene, time=scene.time + 1))
            yield (then, *columns, *parts), (f"it is {scene.time + 1} s", ()), columns

    def _node_moves(
        self, globe: int, columns: tuple[int, ...], parts: tuple[int, ...]
    ) -> Iterator[Found]:
        scene: Scene = self._tables.globes.things[globe]
        before = -1
        for index, column in enumerate(columns):
            if column == before:
                continue  # nodes in equal columns are the same to everybody
            before = column
            for text, changed, records in self._runs(column):
                raw = (*columns[:index], changed, *columns[index + 1 :])
                label = (text, (index,))
                if records:
                    self._must_not(label, ledger.missed_by_a_claim(self._history(raw, parts)))
                yield (globe, *sorted(raw), *parts), label, raw
            if scene.forgets:
                copy, lanes = self._tables.columns.things[column]
                left = self._tables.columns.number((Copy(done=copy.done), lanes))
                then = self._tables.globes.number(replace(scene, forgets=scene.forgets - 1))
                raw = (*columns[:index], left, *columns[index + 1 :])
                yield (then, *sorted(raw), *parts), ("{0} loses its data", (index,)), raw

    def _find_runs(self, column: int) -> Iterator[tuple[str, int, bool]]:
        """Yield what a node may run next, and whether it records something by that."""
        copy, lanes = self._tables.columns.things[column]
        for index, number in enumerate(lanes):
            lane: Lane = self._tables.lanes.things[number]
            for at in range(len(lane.under_way)):
                if at and not self.setting.reorders:
                    break
                command, awaited = lane.under_way[at]
                rest = (*lane.under_way[:at], *lane.under_way[at + 1 :])
                then, vote = run_command(copy, command)
                answer = (Told.by(vote), 0) if awaited else lane.answer
                changed = self._tables.column(then, lanes, index, Lane(rest, answer))
                told = type(vote).__name__.lower()
                yield f"{{0}} runs {NAMES[index]}'s {command.script}: {told}", changed, then != copy

    def _leader_moves(
        self,
        globe: int,
        columns: tuple[int, ...],
        parts: tuple[int, ...],
        indexes: Iterable[int],
    ) -> Iterator[Found]:
        scene: Scene = self._tables.globes.things[globe]
        started = [self._tables.parts.things[part].stands != "idle" for part in parts]
        for index in indexes:
            part = parts[index]
            if index and not started[index - 1]:
                return  # tokens are handed out in order
            lanes = tuple(self._tables.columns.things[column][1][index] for column in columns)
            for move in self._moves.of(index, part, scene.time, lanes):
                if move.gives_up and not scene.gives_up:
                    continue
                now = (*parts[:index], move.part, *parts[index + 1 :])
                raw = columns
                if move.lanes is not None:
                    raw = tuple(
                        self._tables.put(column, index, lane)
                        for column, lane in zip(columns, move.lanes, strict=True)
                    )
                then = globe
                if move.gives_up:
                    left = replace(scene, gives_up=scene.gives_up - 1)
                    then = self._tables.globes.number(left)
                if move.claimed:
                    self._must_not(move.label, ledger.missed_by_a_claim(self._history(raw, now)))
                if move.sends:
                    token = token_of(index)
                    history = self._history(raw, now)
                    self._must_not(move.label, ledger.sent_again(history, token, move.sends))
                    if any(other < token for other, due, _ in scene.messages if due == move.sends):
                        self.reached.add("a tick is sent by two")
                    messages = tuple(sorted((*scene.messages, (token, move.sends, "sent"))))
                    then = self._tables.globes.number(replace(scene, messages=messages))
                yield (then, *sorted(raw), *now), move.label, raw

    def _arriving(
        self, globe: int, columns: tuple[int, ...], parts: tuple[int, ...]
    ) -> Iterator[Found]:
        scene: Scene = self._tables.globes.things[globe]
        if not any(end == "sent" for _, _, end in scene.messages):
            return
        copies = tuple(self._copy(column) for column in columns)
        history = self._history(columns, parts)
        for label, messages, danger in self._arrivals.of(scene.messages, copies, history):
            self._must_not(label, danger)
            if not self.setting.arrives:
                continue
            then = self._tables.globes.number(replace(scene, messages=messages))
            yield (then, *columns, *parts), label, columns

    def _history(self, columns: tuple[int, ...], parts: tuple[int, ...]) -> History:
        things = self._tables.parts.things
        leaders = tuple((token_of(index), things[part]) for index, part in enumerate(parts))
        return History(self._writes(columns), leaders)

    def _must_not(self, label: Label, danger: str) -> None:
        if not danger:
            return
        if self.setting.forgets:
            self.reached.add("something was lost with a node's data")
            return
        raise ViolationError(label, danger)
