"""
Breadth-first exploration with the shortest trace to a violation.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

#: Anything that has a hash.
State = Any

#: How a move reads, with the positions of the nodes that it names; a plain move names none.
Label = tuple[str, tuple[int, ...]]


#: The next state, the move, and the columns before they were sorted.
Found = tuple[State, Label, tuple[int, ...]]


class ViolationError(Exception):
    """
    A move broke an invariant.

    Attributes:
        label: the move.
        what: the invariant, in words.
    """

    def __init__(self, label: Label, what: str) -> None:
        super().__init__(what)
        self.label = label
        self.what = what


class Model(Protocol):
    """What is explored."""

    #: Kinds of events that have been reached.
    reached: set[str]

    def initial(self) -> State:
        """Return the first state."""

    def moves(self, state: State) -> Iterator[Found]:
        """Yield each move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnySetting:
    """
    A setting of a model, which is explored.

    Attributes:
        model: the class of its model, which is imported when it is explored: some load Celery.
        name: of its own.
        expects: kinds of events that must be reached.
        whole: explored to the end in every run, however many states there are.
        limit: states to explore where nothing else is asked for.
    """

    model: ClassVar[str]
    name: str
    expects: frozenset[str] = frozenset()
    whole: bool = True
    limit: int = 125_000


@dataclass(slots=True, kw_only=True)
class Outcome:
    """
    What an exploration found.

    Attributes:
        states: distinct states.
        moves: transitions taken.
        exhausted: there was nothing left to explore.
        trace: moves to the violation, shortest first; empty without one.
    """

    name: str
    states: int = 0
    moves: int = 0
    exhausted: bool = False
    seconds: float = 0.0
    violation: str = ""
    trace: list[str] = field(default_factory=list)
    reached: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def explore(model: Model, name: str, limit: int) -> Outcome:
    """Visit every state that can be reached, nearest first, until `limit` states are known."""
    begun = time.perf_counter()
    outcome = Outcome(name=name)
    first = model.initial()
    order, parents = [first], {first: None}
    try:
        for state in order:  # which grows meanwhile
            if len(order) > limit:
                break
            for found, _, _ in model.moves(state):
                outcome.moves += 1
                if found not in parents:
                    parents[found] = state
                    order.append(found)
        else:
            outcome.exhausted = True
    except ViolationError as exc:
        outcome.violation, outcome.trace = exc.what, _trace(model, parents, state, exc.label)
    outcome.states, outcome.seconds = len(order), time.perf_counter() - begun
    outcome.reached = sorted(model.reached)
    return outcome


def _trace(
    model: Model, parents: dict[State, State | None], state: State, last: Label
) -> list[str]:
    """Tell the way to a state; a node keeps its number although states sort their nodes."""
    path = [state]
    while (before := parents[path[-1]]) is not None:
        path.append(before)
    numbers = [1, 2, 3, 4, 5, 6, 7]
    told = []
    for before, after in itertools.pairwise(reversed(path)):
        label, columns = next(
            (label, columns) for found, label, columns in model.moves(before) if found == after
        )
        told.append(_tell(label, numbers))
        order_then = sorted(range(len(columns)), key=columns.__getitem__)
        numbers = [numbers[index] for index in order_then]
    told.append(_tell(last, numbers))
    return told


def _tell(label: Label, numbers: list[int]) -> str:
    text, positions = label
    return text.format(*(f"node {numbers[index]}" for index in positions))
