"""
Breadth-first exploration with the shortest trace to a violation.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

State = tuple[int, ...]

#: How a move reads, with the positions of the nodes that it names; a plain move names none.
Label = tuple[str, tuple[int, ...]]


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

    def moves(self, state: State) -> Iterator[tuple[State, Label, tuple[int, ...]]]:
        """Yield each next state, the move, and the columns before they were sorted."""


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
    states: int
    moves: int
    exhausted: bool
    seconds: float
    violation: str = ""
    trace: list[str] = field(default_factory=list)
    reached: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def explore(model: Model, name: str, limit: int) -> Outcome:
    """Visit every state that can be reached, nearest first, until `limit` states are known."""
    begun = time.perf_counter()
    first = model.initial()
    order = [first]
    parents = [-1]
    known = {first}
    taken = 0
    position = 0
    while position < len(order):
        if len(order) > limit:
            break
        state = order[position]
        try:
            for found, _, _ in model.moves(state):
                taken += 1
                if found not in known:
                    known.add(found)
                    order.append(found)
                    parents.append(position)
        except ViolationError as exc:
            return Outcome(
                name=name,
                states=len(order),
                moves=taken,
                exhausted=False,
                seconds=time.perf_counter() - begun,
                violation=exc.what,
                trace=_trace(model, order, parents, position, exc.label),
                reached=sorted(model.reached),
            )
        position += 1
    return Outcome(
        name=name,
        states=len(order),
        moves=taken,
        exhausted=position == len(order),
        seconds=time.perf_counter() - begun,
        reached=sorted(model.reached),
    )


def _trace(
    model: Model, order: list[State], parents: list[int], position: int, last: Label
) -> list[str]:
    """Tell the way to a state; a node keeps its number although states sort their nodes."""
    path = []
    while position >= 0:
        path.append(order[position])
        position = parents[position]
    path.reverse()
    numbers = [1, 2, 3, 4, 5, 6, 7]
    told = []
    for before, after in itertools.pairwise(path):
        for found, label, columns in _moves_until_violation(model, before):
            if found == after:
                told.append(_tell(label, numbers))
                order_then = sorted(range(len(columns)), key=columns.__getitem__)
                numbers = [numbers[index] for index in order_then]
                break
    told.append(_tell(last, numbers))
    return told


def _moves_until_violation(
    model: Model, state: State
) -> Iterator[tuple[State, Label, tuple[int, ...]]]:
    try:
        yield from model.moves(state)
    except ViolationError:
        return


def _tell(label: Label, numbers: list[int]) -> str:
    text, positions = label
    return text.format(*(f"node {numbers[index]}" for index in positions))
