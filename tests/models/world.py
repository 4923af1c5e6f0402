"""
Contenders and three nodes as states and moves.

A state is a tuple of numbers: the world's clock and budgets, one column for each node (sorted, as
nodes are alike) and one number for each contender. A column is what the node remembers and, for
each contender, the connection to it: commands under way in order, the answer that waits to be
taken, and the vote that the contender's round remembers of this node. Every part is interned, and
every step of shipped code is run once for each distinct input.

Answers are taken when they decide. Until then they change nothing that others see, so taking them
later, in any order, covers every schedule in which they are taken one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from celery_redlock.core.attempt import Terms
from celery_redlock.protocol import Command, Kind, Phase, Vote, acquire, fence_key
from celery_redlock.protocol.node import GuardRecord, NodeState, StoredKey
from celery_redlock.protocol.timing import CANDIDATE_AHEAD_US
from tests.models import shipped
from tests.models.explorer import Label, State, ViolationError
from tests.models.shipped import MOMENT, TICK, Held, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """
    One attempt and what follows from it.

    Attributes:
        candidate: µs by which its wall clock is ahead; the candidate itself where time stands.
        keys: lock keys.
        extends: how many extensions it may try.
        extends_to: length that extensions ask for, in ticks; the lease's own if None.
        releases: it may release; otherwise it holds on until its time is over.
        after: contender that must have ended before; the same client tries again.
        gives_up: it may stop to wait for answers before they decide.
        starts_from: first tick at which it may start.
        starts_by: last tick at which it may start.
    """

    candidate: int = 0
    keys: tuple[str, ...] = ("k",)
    extends: int = 0
    extends_to: int | None = None
    releases: bool = True
    after: int | None = None
    gives_up: bool = True
    starts_from: int = 0
    starts_by: int = 99


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """
    What is explored.

    Attributes:
        contenders: who contends.
        timed: time passes in ticks of 1 ms; otherwise it stands, and keys expire at any moment.
        ttl: lease length in ticks.
        drift_factor: as the setting.
        horizon: last tick.
        max_ttl: what a restarted node sits out, in ticks; 0: guard off.
        crashes: how many nodes may crash in total.
        crash_kinds: of `empty` (restart without data), `noticed` (the same, and somebody else asks
            the node at once), `stale` (restart with data from before the locks), `flush` (data lost
            while running), `counters` (only the fence counters lost).
        leaps: how many times a node's clock may gain `leap` ticks.
        losses: how many commands may be lost on their way.
        fences: counters that each node has from before.
        expiries: how many keys may expire where time stands; None: any number.
        split: it is a violation when all contenders conclude that the lock is contended.
        expects: kinds of events that must be reached.
        whole: explored to the end in every run, however many states there are.
    """

    name: str
    contenders: tuple[Contender, ...]
    nodes: int = 3
    timed: bool = False
    ttl: int = 4
    drift_factor: float = 0.0
    horizon: int = 0
    max_ttl: int = 0
    crashes: int = 0
    crash_kinds: tuple[str, ...] = ("empty",)
    leaps: int = 0
    leap: int = 3
    losses: int = 0
    fences: tuple[tuple[str, int], ...] = ()
    expiries: int | None = None
    split: bool = False
    expects: frozenset[str] = frozenset()
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Lane:
    """The connection between one contender and one node."""

    under_way: tuple[tuple[Command, bool], ...] = ()
    answer: tuple[Vote, int] | None = None
    counted: Vote | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """What a node remembers, frozen."""

    identity: int = 0
    keys: tuple[tuple[str, str, float], ...] = ()
    fences: tuple[tuple[str, int], ...] = ()
    guard: tuple[int, int] | None = None
    gained: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """Where a contender stands."""

    stands: str = "idle"
    since: int = 0
    floor: int = 0
    scalars: Any = None
    held: Held | None = None
    extended: int = 0


class _Table:
    """Numbers for things, so that equal things have equal numbers."""

    def __init__(self) -> None:
        self.things: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def number(self, thing: Any) -> int:
        found = self._numbers.get(thing)
        if found is None:
            found = self._numbers[thing] = len(self.things)
            self.things.append(thing)
        return found


@dataclass(frozen=True, slots=True)
class _Globe:
    time: int = 0
    crashes: int = 0
    leaps: int = 0
    expiries: int = 0
    losses: int = 0


_NAMES = "ABCDEFG"

#: How it reads, the column then, the world then, and which invariant it breaks.
_NodeMove = tuple[str, int, int, str]

#: How it reads, the contender then, its connections then, and which invariant it breaks.
_Client = tuple[Label, int, tuple[int, ...], str]


@dataclass(slots=True)
class World:
    """The model of one setting."""

    setting: Setting
    reached: set[str] = field(default_factory=set)
    _columns: _Table = field(default_factory=_Table)
    _lanes: _Table = field(default_factory=_Table)
    _parts: _Table = field(default_factory=_Table)
    _globes: _Table = field(default_factory=_Table)
    _node_moves: dict[Any, list[Any]] = field(default_factory=dict)
    _client_moves: dict[Any, list[_Client]] = field(default_factory=dict)
    _puts: dict[Any, int] = field(default_factory=dict)
    _terms: list[Terms] = field(default_factory=list)
    _trust: dict[tuple[int, int], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for index, contender in enumerate(self.setting.contenders):
            client = index if contender.after is None else contender.after
            self._terms.append(
                Terms(
                    keys=contender.keys,
                    ttl=self.setting.ttl * TICK,
                    label=_NAMES[client],
                    drift_factor=self.setting.drift_factor,
                    patience=1.0,
                    quarantine_ms=self.setting.max_ttl,
                )
            )

    def initial(self) -> State:
        setting = self.setting
        guard = (0, 0) if setting.max_ttl else None
        lanes = (self._lanes.number(Lane()),) * len(setting.contenders)
        fences = tuple(sorted((fence_key(key), count) for key, count in setting.fences))
        column = self._columns.number((Node(fences=fences, guard=guard), lanes))
        part = self._parts.number(Part())
        globe = _Globe(0, setting.crashes, setting.leaps, setting.expiries or 0, setting.losses)
        return (
            self._globes.number(globe),
            *(column,) * setting.nodes,
            *(part,) * len(setting.contenders),
        )

    def moves(self, state: State) -> Iterator[tuple[State, Label, tuple[int, ...]]]:
        nodes = self.setting.nodes
        globe, columns, parts = state[0], state[1 : nodes + 1], state[nodes + 1 :]
        before = -1
        for index, column in enumerate(columns):
            # Nodes in equal columns are the same to everybody.
            if column == before:
                continue
            before = column
            for text, changed, then, danger in self._moves_of_node(globe, column):
                if danger:
                    raise ViolationError((text, (index,)), danger)
                raw = (*columns[:index], changed, *columns[index + 1 :])
                yield (then, *sorted(raw), *parts), (text, (index,)), raw
        for index, part in enumerate(parts):
            for label, then, lanes, danger in self._moves_of_client(globe, columns, parts, index):
                if danger:
                    raise ViolationError(label, danger)
                raw = tuple(
                    column if lane < 0 else self._put(column, index, lane)
                    for column, lane in zip(columns, lanes, strict=True)
                )
                now = (*parts[:index], then, *parts[index + 1 :])
                if then != part:
                    self._check(globe, now, index, label)
                yield (globe, *sorted(raw), *now), label, raw
        if self.setting.timed:
            world = self._globes.things[globe]
            if world.time < self.setting.horizon:
                then = self._globes.number(replace(world, time=world.time + 1))
                raw = tuple(self._swept(column, world.time + 1) for column in columns)
                label = (f"the clocks say {world.time + 1} ms", ())
                yield (then, *sorted(raw), *parts), label, raw

    # Nodes

    def _moves_of_node(self, globe: int, column: int) -> list[_NodeMove]:
        found = self._node_moves.get((globe, column))
        if found is None:
            found = self._node_moves[globe, column] = list(self._find_node_moves(globe, column))
        return found

    def _find_node_moves(self, globe: int, number: int) -> Iterator[_NodeMove]:
        world: _Globe = self._globes.things[globe]
        node, lanes = self._columns.things[number]
        for index, lane_number in enumerate(lanes):
            lane: Lane = self._lanes.things[lane_number]
            if lane.under_way:
                (command, awaited), *rest = lane.under_way
                changed, vote = self._run(node, command, world.time)
                answer = lane.answer
                if awaited:
                    arrived = world.time if command.kind is Kind.EXTEND else 0
                    answer = (vote, arrived)
                then = Lane(tuple(rest), answer, lane.counted)
                text = f"{{0}} runs {_NAMES[index]}'s {command.kind}: {_told(vote)}"
                self.reached.add(f"{command.kind}: {type(vote).__name__}")
                danger = _robbed(index, str(command.args[0]), node, changed)
                yield text, self._column(changed, lanes, index, then), globe, danger
                if awaited and world.losses:
                    then_globe = self._globes.number(replace(world, losses=world.losses - 1))
                    text = f"{_NAMES[index]}'s {command.kind} to {{0}} is lost"
                    then = replace(lane, under_way=tuple(rest))
                    yield text, self._column(node, lanes, index, then), then_globe, ""
        setting = self.setting
        if not setting.timed and (setting.expiries is None or world.expiries):
            then_globe = globe
            if setting.expiries is not None:
                then_globe = self._globes.number(replace(world, expiries=world.expiries - 1))
            for key in node.keys:
                left = replace(node, keys=tuple(other for other in node.keys if other != key))
                text = f"{key[0]!r} of {_who(key[1])} expires on {{0}}"
                yield text, self._columns.number((left, lanes)), then_globe, ""
        if world.crashes:
            then_globe = self._globes.number(replace(world, crashes=world.crashes - 1))
            for kind in setting.crash_kinds:
                left = self._crashed(node, kind, world.time)
                if left != node:
                    self.reached.add(f"crash: {kind}")
                    text = f"{{0}} crashes ({kind})"
                    yield text, self._columns.number((left, lanes)), then_globe, ""
        if world.leaps and not node.gained and (node.keys or node.guard != (node.identity, 0)):
            then_globe = self._globes.number(replace(world, leaps=world.leaps - 1))
            left = self._sweep(replace(node, gained=setting.leap), world.time)
            text = f"the clock of {{0}} gains {setting.leap} ms"
            yield text, self._columns.number((left, lanes)), then_globe, ""

    def _crashed(self, node: Node, kind: str, time: int) -> Node:
        if kind == "counters":
            return replace(node, fences=())
        if kind == "flush":
            return Node(identity=node.identity, gained=node.gained)
        if kind == "stale":
            return replace(node, identity=node.identity + 1, keys=())
        then = Node(identity=node.identity + 1, gained=node.gained)
        if kind == "noticed":
            bystander = acquire(("z",), "bystander Z", self.setting.ttl, 0, self.setting.max_ttl)
            then, _ = self._run(then, bystander, time)
        return then

    def _run(self, node: Node, command: Command, time: int) -> tuple[Node, Vote]:
        state = NodeState(
            str(node.identity),
            {key: StoredKey(owner, until) for key, owner, until in node.keys},
            dict(node.fences),
            None if node.guard is None else GuardRecord(str(node.guard[0]), node.guard[1]),
        )
        vote = state.run(command, (time + node.gained) * 1000)
        guard = None
        if state.guard is not None:
            guard = (int(state.guard.identity), state.guard.not_before)
        then = Node(
            node.identity,
            tuple(sorted((key, it.owner, it.expires_at) for key, it in state.keys.items())),
            tuple(sorted(state.fences.items())),
            guard,
            node.gained,
        )
        return self._sweep(then, time), vote

    def _sweep(self, node: Node, time: int) -> Node:
        """Forget what no longer matters, so that equal futures are equal states."""
        if not self.setting.timed:
            return node
        here = time + node.gained
        keys = tuple(key for key in node.keys if here <= key[2])
        guard = node.guard
        if guard is not None and guard[1] <= here * 1000:
            guard = (guard[0], 0)
        if keys == node.keys and guard == node.guard:
            return node
        return replace(node, keys=keys, guard=guard)

    def _swept(self, column: int, time: int) -> int:
        found = self._puts.get((column, -1, time))
        if found is None:
            node, lanes = self._columns.things[column]
            found = self._columns.number((self._sweep(node, time), lanes))
            self._puts[column, -1, time] = found
        return found

    def _column(self, node: Node, lanes: tuple[int, ...], index: int, lane: Lane) -> int:
        number = self._lanes.number(lane)
        return self._columns.number((node, (*lanes[:index], number, *lanes[index + 1 :])))

    def _put(self, column: int, index: int, lane: int) -> int:
        found = self._puts.get((column, index, lane))
        if found is None:
            node, lanes = self._columns.things[column]
            found = self._columns.number((node, (*lanes[:index], lane, *lanes[index + 1 :])))
            self._puts[column, index, lane] = found
        return found

    # Contenders

    def _moves_of_client(
        self, globe: int, columns: tuple[int, ...], parts: tuple[int, ...], index: int
    ) -> list[_Client]:
        part = parts[index]
        lanes = tuple(self._columns.things[column][1][index] for column in columns)
        stands = self._parts.things[part].stands
        floor = -1
        if stands == "idle":
            floor = self._floor(parts, index)
        elif stands == "ended":
            return []
        key = (index, part, floor, globe, lanes)
        found = self._client_moves.get(key)
        if found is None:
            time = self._globes.things[globe].time
            found = self._client_moves[key] = list(self._find(index, part, floor, time, lanes))
        return found

    def _floor(self, parts: tuple[int, ...], index: int) -> int:
        """Return the largest token granted before, or -1 while it is not this one's turn."""
        contender = self.setting.contenders[index]
        floor = 0
        for other, number in enumerate(parts):
            part: Part = self._parts.things[number]
            if other == contender.after and part.stands != "ended":
                return -1
            shared = set(contender.keys) & set(self.setting.contenders[other].keys)
            if part.held is not None and shared:
                floor = max(floor, part.held.token)
        return floor

    def _find(
        self, index: int, number: int, floor: int, time: int, lanes: tuple[int, ...]
    ) -> Iterator[_Client]:
        part: Part = self._parts.things[number]
        if part.stands == "idle":
            contender = self.setting.contenders[index]
            if floor >= 0 and contender.starts_from <= time <= contender.starts_by:
                yield self._start(index, floor, time, lanes)
        elif part.stands in ("asks", "raises"):
            yield from _distinct(self._decide(index, part, time, lanes))
        elif part.stands == "holds":
            yield from self._hold(index, part, time, lanes)
        elif part.stands == "extends":
            yield from _distinct(self._extended(index, part, time, lanes))

    def _stage(self, time: int, index: int) -> Stage:
        contender = self.setting.contenders[index]
        return Stage(self.setting.nodes, time * TICK, time * 1000 + contender.candidate)

    def _start(self, index: int, floor: int, time: int, lanes: tuple[int, ...]) -> _Client:
        stage = self._stage(time, index)
        shipped.run_attempt(index, self._terms[index], stage)
        label = (f"{_NAMES[index]} starts", ())
        then = Part("asks", time, floor)
        return label, self._parts.number(then), self._said(stage, lanes), ""

    def _decide(
        self, index: int, part: Part, time: int, lanes: tuple[int, ...]
    ) -> Iterator[_Client]:
        name = _NAMES[index]
        for feed, gives_up in self._feeds(lanes, self.setting.contenders[index].gives_up):
            stage = self._stage(part.since, index)
            stage.answered_at = stage.resumed_at = time * TICK + MOMENT
            stage.feed = tuple((node, vote) for node, vote, _ in feed)
            stage.gives_up = gives_up
            if part.stands == "raises":
                counted = tuple(self._lanes.things[lane].counted for lane in lanes)
                stage.restored = [(part.scalars, counted)]
            end = shipped.run_attempt(index, self._terms[index], stage)
            if stage.decided != (0 if gives_up else len(feed)):
                continue  # not enough to decide, or a shorter way to decide the same
            label = _took(name, feed, gives_up)
            if end is None:
                self.reached.add("second round")
                scalars, votes = shipped.snapshot(stage.waits)
                then = Part("raises", part.since, part.floor, scalars)
                lanes_then = self._said(stage, lanes, votes)
                label = (f"{label[0]}: second round", label[1])
                yield label, self._parts.number(then), lanes_then, ""
                continue
            phase, token, trusted_until, owner = end
            danger = ""
            self.reached.add(f"{phase.name.lower()} ({part.stands})")
            if phase is Phase.GRANTED:
                held = Held(owner, token, trusted_until)
                then = Part("holds", 0, part.floor, None, held)
                if stage.time >= trusted_until:
                    danger = "an attempt is granted although its time is over"
                told = f"holds with token {token}"
                if self.setting.timed:
                    told += f", trusted until {trusted_until / TICK:.0f} ms"
            else:
                then = Part("ended", scalars=phase.name if self.setting.split else None)
                told = phase.name
                freed = {
                    node
                    for command, nodes, _ in stage.said
                    for node in nodes
                    if command.kind is Kind.RELEASE
                }
                if len(freed) < len(lanes):
                    danger = "an attempt has ended and is not undone on every node"
            label = (f"{label[0]}: {told}", label[1])
            yield label, self._parts.number(then), self._said(stage, lanes), danger

    def _hold(self, index: int, part: Part, time: int, lanes: tuple[int, ...]) -> Iterator[_Client]:
        contender = self.setting.contenders[index]
        terms = self._terms[index]
        held = part.held
        assert held is not None
        if part.extended < contender.extends:
            stage = self._stage(time, index)
            shipped.run_extend(held, terms, stage, contender.extends_to)
            if stage.said:
                then = replace(part, stands="extends", since=time, extended=part.extended + 1)
                label = (f"{_NAMES[index]} extends", ())
                yield label, self._parts.number(then), self._said(stage, lanes), ""
        if contender.releases:
            stage = self._stage(time, index)
            stage.time += MOMENT
            shipped.run_release(held, terms, stage)
            ended = Part("ended", held=replace(held, trusted_until=0.0))
            label = (f"{_NAMES[index]} releases", ())
            yield label, self._parts.number(ended), self._said(stage, lanes, waits=False), ""

    def _extended(
        self, index: int, part: Part, time: int, lanes: tuple[int, ...]
    ) -> Iterator[_Client]:
        held = part.held
        assert held is not None
        for feed, gives_up in self._feeds(lanes, self.setting.contenders[index].gives_up):
            earliest = max((arrived for _, _, arrived in feed), default=time)
            for taken in range(earliest, time + 1) if self.setting.timed else (time,):
                stage = self._stage(part.since, index)
                stage.answered_at = taken * TICK + MOMENT
                stage.resumed_at = time * TICK + MOMENT
                stage.feed = tuple((node, vote) for node, vote, _ in feed)
                stage.gives_up = gives_up
                extends_to = self.setting.contenders[index].extends_to
                end = shipped.run_extend(held, self._terms[index], stage, extends_to)
                if end is None:
                    continue
                told, now = end
                danger = ""
                if now.trusted_until > held.trusted_until and stage.time >= held.trusted_until:
                    danger = "a lease that was over came back"
                if now.trusted_until < held.trusted_until:
                    danger = "an extension shortened the lease"
                for command, _, _ in stage.said:
                    self.reached.add(f"says {command.kind}")
                    if command.kind is Kind.HEAL and stage.time >= held.trusted_until:
                        danger = "keys are healed although the time that was sure is over"
                self.reached.add(f"extension: {told}")
                if told == "lost":
                    now = replace(now, trusted_until=0.0)
                then = replace(part, stands="holds", since=0, held=now)
                text, positions = _took(_NAMES[index], feed, gives_up)
                if self.setting.timed:
                    text += f" at {taken} ms"
                    told += f", trusted until {now.trusted_until / TICK:.0f} ms"
                label = (f"{text}: extension {told}", positions)
                yield label, self._parts.number(then), self._said(stage, lanes), danger

    def _feeds(
        self, lanes: tuple[int, ...], may_give_up: bool
    ) -> Iterator[tuple[tuple[tuple[int, Vote, int], ...], bool]]:
        """Yield ways to take answers: which, in which order, and whether the rest has failed."""
        there = []
        for node, lane in enumerate(lanes):
            answer = self._lanes.things[lane].answer
            if answer is not None:
                there.append((node, *answer))
        for count in range(len(there) + 1):
            for feed in itertools.permutations(there, count):
                if count:
                    yield feed, False
                if may_give_up:
                    yield feed, True

    def _said(
        self,
        stage: Stage,
        lanes: tuple[int, ...],
        votes: tuple[Vote | None, ...] | None = None,
        *,
        waits: bool = True,
    ) -> tuple[int, ...]:
        """Put what was said on the connections; answers to what was said before do not count."""
        then = []
        for node, number in enumerate(lanes):
            lane: Lane = self._lanes.things[number]
            under_way = [(command, False) for command, _ in lane.under_way]
            under_way += [
                (command, awaited and waits)
                for command, nodes, awaited in stage.said
                if node in nodes
            ]
            counted = None if votes is None else votes[node]
            then.append(self._lanes.number(Lane(tuple(under_way), None, counted)))
        return tuple(then)

    # Invariants

    def _check(self, globe: int, parts: tuple[int, ...], index: int, label: Label) -> None:
        part: Part = self._parts.things[parts[index]]
        if self.setting.split:
            ends = [self._parts.things[number].scalars for number in parts]
            if all(end == "CONTENDED" for end in ends):
                raise ViolationError(label, "every contender gives way to another, nobody works")
        if part.held is None or part.stands != "holds":
            return
        contenders = self.setting.contenders
        token = part.held.token
        if not part.extended and token <= part.floor:
            raise ViolationError(
                label, f"token {token} is not larger than {part.floor}, granted before it asked"
            )
        time = self._globes.things[globe].time
        if token > (time + 9) * 1000 + CANDIDATE_AHEAD_US:
            raise ViolationError(label, f"token {token} is far ahead of every node's clock")
        for other, number in enumerate(parts):
            rival: Part = self._parts.things[number]
            if other == index or rival.held is None:
                continue
            if not set(contenders[index].keys) & set(contenders[other].keys):
                continue
            if rival.held.token == token:
                raise ViolationError(label, f"{_NAMES[index]} and {_NAMES[other]} share a token")
            if (
                self.setting.timed
                and rival.stands in ("holds", "extends")
                and self._trusted(parts[index], index, time)
                and self._trusted(number, other, time)
            ):
                raise ViolationError(
                    label, f"{_NAMES[index]} and {_NAMES[other]} both trust their lease"
                )

    def _trusted(self, number: int, index: int, time: int) -> bool:
        found = self._trust.get((number, time))
        if found is None:
            held = self._parts.things[number].held
            found = shipped.is_trusted(held, self._terms[index], time * TICK + MOMENT)
            self._trust[number, time] = found
        return found


def _robbed(index: int, speaker: str, before: Node, after: Node) -> str:
    """Tell whether a contender's command has ended or changed a key of somebody else."""
    for key in before.keys:
        if key[1] != speaker and key not in after.keys:
            return f"{_NAMES[index]} ended or changed a key of {_who(key[1])}"
    return ""


def _distinct(moves: Iterator[_Client]) -> Iterator[_Client]:
    seen = set()
    for label, part, lanes, danger in moves:
        if (part, lanes, danger) not in seen:
            seen.add((part, lanes, danger))
            yield label, part, lanes, danger


def _took(name: str, feed: tuple[tuple[int, Vote, int], ...], gives_up: bool) -> Label:
    places = ", ".join(f"{{{index}}}" for index in range(len(feed)))
    text = f"{name} takes {places}" if feed else f"{name} waits no longer"
    if feed and gives_up:
        text += " and waits no longer"
    return text, tuple(node for node, _, _ in feed)


def _who(owner: str) -> str:
    return owner[-1]


def _told(vote: Vote) -> str:
    name = type(vote).__name__.lower()
    high = getattr(vote, "high", None)
    if high is not None:
        return f"{name} {high}"
    holders = getattr(vote, "holders", None)
    return f"{name} by {_who(holders[0].owner)}" if holders else name
