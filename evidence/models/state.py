"""
What states are made of: plain values, and numbers for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from celery_redlock.protocol.commands import Command
from celery_redlock.protocol.votes import Vote
from celery_redlock.protocol.wait_queue import WaitQueue
from evidence.models.stepper import Held

#: Contenders, as traces call them.
NAMES = "ABCDEFG"

#: Of each key those that wait, first to be woken first, and whether they were woken.
Queues = tuple[tuple[str, tuple[tuple[str, bool], ...]], ...]


@dataclass(frozen=True, slots=True)
class Lane:
    """The connection between one contender and one node."""

    #: What was said, and whether it is waited for: never (False), no longer (None).
    under_way: tuple[tuple[Command, bool | None], ...] = ()
    answer: tuple[Vote, int] | None = None
    counted: Vote | None = None
    #: The contender knows that its acquire is done there.
    acked: bool = False
    #: The node ran the latest command that may have set keys when nobody waited any more.
    late: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """What a node remembers, frozen."""

    identity: int = 0
    keys: tuple[tuple[str, str, float], ...] = ()
    fences: tuple[tuple[str, int], ...] = ()
    guard: tuple[int, int] | None = None
    gained: int = 0
    #: Those who wait for a key, first to be woken first, and whether they were woken before.
    waiting: Queues = ()
    #: Those whom the node has woken since it last refused them.
    woken: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Part:
    """Where a contender stands."""

    stands: str = "idle"
    since: int = 0
    #: The largest token that was granted before it started, of each of its keys and slots.
    floor: tuple[tuple[str, int], ...] = ()
    scalars: Any = None
    held: Held | None = None
    extended: int = 0
    #: What stood on a quorum of nodes when it started, and keeps it away.
    barred: frozenset[str] = frozenset()
    #: Nodes that it has undone without knowing whether they had done anything.
    undone: int = 0


@dataclass(frozen=True, slots=True)
class Globe:
    """The clock, and what is left of each budget."""

    time: int = 0
    crashes: int = 0
    leaps: int = 0
    expiries: int = 0
    losses: int = 0


class Table:
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


@dataclass(slots=True)
class Tables:
    """
    Every part of the states of one exploration, by its number.

    Attributes:
        globes: clocks and budgets.
        columns: nodes, each with the numbers of its lanes.
        lanes: connections.
        parts: contenders.
    """

    globes: Table = field(default_factory=Table)
    columns: Table = field(default_factory=Table)
    lanes: Table = field(default_factory=Table)
    parts: Table = field(default_factory=Table)
    put: Callable[[int, int, int], int] = field(init=False)

    def __post_init__(self) -> None:
        self.put = cache(self._put)

    def column(self, node: Node, lanes: tuple[int, ...], index: int, lane: Lane) -> int:
        """Return the number of a node's column with one of its lanes changed."""
        number = self.lanes.number(lane)
        return self.columns.number((node, (*lanes[:index], number, *lanes[index + 1 :])))

    def _put(self, column: int, index: int, lane: int) -> int:
        """Return the number of a column in which one contender has another lane."""
        node, lanes = self.columns.things[column]
        return self.columns.number((node, (*lanes[:index], lane, *lanes[index + 1 :])))


def frozen_queues(queues: Mapping[str, WaitQueue]) -> Queues:
    """Return the wait queues of a node that are not empty, as they are part of a state."""
    return tuple(
        (key, tuple((name, name in queue.woken) for name in queue.first(9)))
        for key, queue in sorted(queues.items())
        if queue.scores
    )


def wait_queues(queues: Queues, woken_at: float) -> dict[str, WaitQueue]:
    """Return the wait queues of a node in a state, as if all woken ones were woken at once."""
    return {
        key: WaitQueue(
            {name: NAMES.index(name) + 1 for name, _ in queue},
            {name: woken_at for name, is_woken in queue if is_woken},
            expires_at=math.inf,
        )
        for key, queue in queues
    }


def owner_name(owner: str) -> str:
    """Return the contender whose owner value this is."""
    return owner[-1]
