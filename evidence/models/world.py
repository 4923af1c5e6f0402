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

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from celery_redlock.protocol.keys import fence_key
from evidence.models.config import Setting
from evidence.models.contenders import ContenderMoves, terms_of
from evidence.models.explorer import Found, State, ViolationError
from evidence.models.handover import BROUGHT
from evidence.models.invariants import Invariants
from evidence.models.nodes import NodeMoves
from evidence.models.state import Globe, Lane, Node, Part, Tables
from evidence.models.stepper import LONG


@dataclass(slots=True)
class World:
    """The model of one setting."""

    setting: Setting
    reached: set[str] = field(default_factory=set)
    _tables: Tables = field(default_factory=Tables)
    _nodes: NodeMoves = field(init=False)
    _contenders: ContenderMoves = field(init=False)
    _invariants: Invariants = field(init=False)

    def __post_init__(self) -> None:
        params = terms_of(self.setting)
        self._nodes = NodeMoves(self.setting, self._tables, self.reached, self._first_node())
        self._contenders = ContenderMoves(self.setting, self._tables, params, self.reached)
        self._invariants = Invariants(self.setting, self._tables, params)

    def initial(self) -> State:
        setting = self.setting
        lanes = (self._tables.lanes.number(Lane()),) * len(setting.contenders)
        column = self._tables.columns.number((self._first_node(), lanes))
        part = self._tables.parts.number(Part())
        globe = Globe(0, setting.crashes, setting.leaps, setting.expiries or 0, setting.losses)
        return (
            self._tables.globes.number(globe),
            *(column,) * setting.nodes,
            *(part,) * len(setting.contenders),
        )

    def _first_node(self) -> Node:
        setting = self.setting
        guard = (0, 0) if setting.max_ttl else None
        fences = tuple(sorted((fence_key(key), count) for key, count in setting.fences))
        keys = (("k", BROUGHT, LONG),) if setting.brought else ()
        return Node(fences=fences, guard=guard, keys=keys)

    def moves(self, state: State) -> Iterator[Found]:
        nodes = self.setting.nodes
        globe, columns, parts = state[0], state[1 : nodes + 1], state[nodes + 1 :]
        if self.setting.keeps:
            self._invariants.check_kept(columns, parts)
        if self.setting.wakes:
            self._invariants.check_woken(columns, parts)
        if self.setting.clears:
            self._invariants.check_cleared(columns, parts)
        before = -1
        for index, column in enumerate(columns):
            # Nodes in equal columns are the same to everybody.
            if column == before:
                continue
            before = column
            for text, changed, then, danger in self._nodes.moves_of(globe, column):
                if danger:
                    raise ViolationError((text, (index,)), danger)
                raw = (*columns[:index], changed, *columns[index + 1 :])
                yield (then, *sorted(raw), *parts), (text, (index,)), raw
        for index, part in enumerate(parts):
            for label, then, lanes, danger in self._contenders.moves_of(
                globe, columns, parts, index
            ):
                if danger:
                    raise ViolationError(label, danger)
                raw = tuple(
                    column if lane < 0 else self._tables.put(column, index, lane)
                    for column, lane in zip(columns, lanes, strict=True)
                )
                now = (*parts[:index], then, *parts[index + 1 :])
                if then != part:
                    self._invariants.check(globe, now, index, label)
                    if self._tables.parts.things[then].barred:
                        self._invariants.check_barred(raw, now, index, label)
                yield (globe, *sorted(raw), *now), label, raw
        if self.setting.timed:
            world = self._tables.globes.things[globe]
            if world.time < self.setting.horizon:
                then = self._tables.globes.number(replace(world, time=world.time + 1))
                raw = tuple(self._nodes.swept(column, world.time + 1) for column in columns)
                label = (f"the clocks say {world.time + 1} ms", ())
                yield (then, *sorted(raw), *parts), label, raw
