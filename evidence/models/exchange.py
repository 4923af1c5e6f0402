"""
What passes between a contender and the nodes: what it has said, and which answers it takes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from celery_redlock.protocol.commands import Command
from celery_redlock.protocol.votes import Vote
from evidence.models.explorer import Label
from evidence.models.state import Lane, Tables
from evidence.models.stepper import Stage

#: How it reads, the contender then, its connections then, and which invariant it breaks.
Move = tuple[Label, int, tuple[int, ...], str]

#: The node, its vote, and when it arrived.
Answer = tuple[int, Any, int]
Answers = tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Talk:
    """
    Changes of one contender's connections.

    Attributes:
        tables: where they are numbered.
        hands_over: it matters whether somebody waited for a command when it ran.
    """

    tables: Tables
    hands_over: bool

    def feeds(
        self,
        lanes: tuple[int, ...],
        may_give_up: bool,
        taken: Callable[[list[Answer], int], Iterable[Answers]] = itertools.permutations,
    ) -> Iterator[tuple[Answers, bool]]:
        """Yield ways to take answers: which, in which order, and whether the rest has failed."""
        there = []
        for node, lane in enumerate(lanes):
            answer = self.tables.lanes.things[lane].answer
            if answer is not None:
                there.append((node, *answer))
        for count in range(len(there) + 1):
            for feed in taken(there, count):
                if count:
                    yield feed, False
                if may_give_up:
                    yield feed, True

    def said(
        self,
        stage: Stage,
        lanes: tuple[int, ...],
        votes: tuple[Vote | None, ...] | None = None,
        *,
        waits: bool = True,
        acked: Collection[int] = (),
        taken: Collection[int] | None = None,
    ) -> tuple[int, ...]:
        """
        Put what was said on the connections.

        Answers to what was said before do not count, unless `taken` names those that have been
        taken so far.
        """
        then = []
        for node, number in enumerate(lanes):
            lane: Lane = self.tables.lanes.things[number]
            under_way: list[tuple[Command, bool | None]] = [
                (command, None if self.hands_over and awaited is not False else False)
                if taken is None
                else (command, awaited)
                for command, awaited in lane.under_way
            ]
            under_way += [
                (command, awaited and waits)
                for command, nodes, awaited in stage.said
                if node in nodes
            ]
            counted = None if votes is None else votes[node]
            answer = None if taken is None or node in taken else lane.answer
            now = Lane(tuple(under_way), answer, counted, node in acked, lane.late)
            then.append(self.tables.lanes.number(now))
        return tuple(then)

    def noted(self, stage: Stage, lanes: tuple[int, ...]) -> tuple[int, ...]:
        """Keep the connections as they are: answers that come later count as well."""
        return tuple(
            self.tables.lanes.number(
                replace(self.tables.lanes.things[lane], acked=node in stage.acked)
            )
            for node, lane in enumerate(lanes)
        )

    def known_done(self, lanes: tuple[int, ...]) -> frozenset[int]:
        """Return the nodes that the contender knows to have executed its acquire."""
        return frozenset(
            node for node, lane in enumerate(lanes) if self.tables.lanes.things[lane].acked
        )


def distinct(moves: Iterator[Move]) -> Iterator[Move]:
    """Yield moves that come to the same only once."""
    seen = set()
    for label, part, lanes, danger in moves:
        if (part, lanes, danger) not in seen:
            seen.add((part, lanes, danger))
            yield label, part, lanes, danger


def took(name: str, feed: Answers, gives_up: bool) -> Label:
    """Tell which answers a contender takes."""
    places = ", ".join(f"{{{index}}}" for index in range(len(feed)))
    text = f"{name} takes {places}" if feed else f"{name} waits no longer"
    if feed and gives_up:
        text += " and waits no longer"
    return text, tuple(node for node, _, _ in feed)
