"""
Whether messages can try for ever although nobody gets anywhere.

All states of a setting are a graph. A cycle in which messages are started, and none is granted its
keys, is a livelock while nothing else happens: no fault, no end of a body, no lapse. It is
`closed` if no way leads out of it except one of those; otherwise a scheduler has to choose each
step for ever, and chance ends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from evidence.waiting.line import ATTEMPT, GRANT, PLAIN, Line, LineSetting, Scene


@dataclass(frozen=True, slots=True)
class Livelock:
    """
    What a search found.

    Attributes:
        states: how many there are.
        is_whole: all were visited.
        cycles: how many sets of states have such a cycle.
        closed: how many of these cannot be left.
        way: to the nearest cycle, and the cycle; a closed one if there is one.
    """

    name: str
    states: int
    is_whole: bool
    cycles: int
    closed: int
    way: tuple[str, ...] = ()
    cycle: tuple[str, ...] = ()


def livelock(setting: LineSetting, limit: int) -> Livelock:
    """Search for cycles of attempts, in at most so many states."""
    line = Line(setting)
    line.initial()
    order: list[Scene] = [line.scenes.things[0]]
    edges: list[list[tuple[int, int, str]]] = []
    parents: list[tuple[int, str]] = [(-1, "")]
    position = 0
    while position < len(order) and len(order) <= limit:
        out = []
        for text, then, kind in line.steps(order[position]):
            then = line.bare(then)
            number = line.scenes.number(then)
            if number == len(order):
                order.append(then)
                parents.append((position, text))
            out.append((number, kind, text))
        edges.append(out)
        position += 1
    is_whole = position == len(order)
    edges += [[] for _ in range(len(order) - len(edges))]
    parts = _parts(edges)
    at = {state: number for number, part in enumerate(parts) for state in part}
    trying = []
    for number, part in enumerate(parts):
        inside = [
            (state, then, kind)
            for state in part
            for then, kind, _ in edges[state]
            if kind in (PLAIN, ATTEMPT) and at[then] == number
        ]
        if any(kind == ATTEMPT for _, _, kind in inside):
            leaves = any(
                kind in (PLAIN, ATTEMPT, GRANT) and at[then] != number
                for state in part
                for then, kind, _ in edges[state]
            )
            trying.append((leaves, min(part), number))
    trying.sort()
    closed = sum(not leaves for leaves, _, _ in trying)
    if not trying:
        return Livelock(setting.name, len(order), is_whole, 0, 0)
    _, first, number = trying[0]
    way, state = [], first
    while state > 0:
        state, text = parents[state]
        way.append(text)
    cycle = _cycle(edges, at, number, parts[number])
    return Livelock(
        setting.name, len(order), is_whole, len(trying), closed, tuple(way[::-1]), cycle
    )


def _parts(edges: list[list[tuple[int, int, str]]]) -> list[list[int]]:
    """Return the strongly connected components, by plain moves and attempts only (Tarjan)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    parts: list[list[int]] = []

    def ways(state: int) -> Iterator[int]:
        return (then for then, kind, _ in edges[state] if kind in (PLAIN, ATTEMPT))

    for root in range(len(edges)):
        if root in index:
            continue
        todo = [(root, ways(root))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while todo:
            state, more = todo[-1]
            for then in more:
                if then not in index:
                    index[then] = low[then] = len(index)
                    stack.append(then)
                    on_stack.add(then)
                    todo.append((then, ways(then)))
                    break
                if then in on_stack:
                    low[state] = min(low[state], index[then])
            else:
                todo.pop()
                if todo:
                    low[todo[-1][0]] = min(low[todo[-1][0]], low[state])
                if low[state] == index[state]:
                    part = []
                    while True:
                        part.append(stack.pop())
                        on_stack.discard(part[-1])
                        if part[-1] == state:
                            break
                    parts.append(part)
    return parts


def _cycle(
    edges: list[list[tuple[int, int, str]]], at: dict[int, int], number: int, part: list[int]
) -> tuple[str, ...]:
    """Return the shortest cycle with an attempt in a component."""
    best: tuple[str, ...] = ()
    for state in sorted(part)[:200]:
        for then, kind, text in edges[state]:
            if kind != ATTEMPT or at[then] != number:
                continue
            known: dict[int, tuple[int, str]] = {then: (-1, "")}
            todo = [then]
            for found in todo:
                if found == state:
                    break
                for after, its_kind, its_text in edges[found]:
                    if its_kind in (PLAIN, ATTEMPT) and at[after] == number and after not in known:
                        known[after] = (found, its_text)
                        todo.append(after)
            told, here = [], state
            while here != then:
                here, its_text = known[here]
                told.append(its_text)
            found_cycle = (text, *told[::-1])
            if not best or len(found_cycle) < len(best):
                best = found_cycle
    return best
