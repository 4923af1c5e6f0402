"""
What becomes of messages when they arrive at a worker.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache

from celery_redlock.protocol.commands import read_register
from celery_redlock.protocol.timing import quorum
from celery_redlock.protocol.votes import VersionedValue
from evidence.models import leader_steps, ledger
from evidence.models.copies import run_command
from evidence.models.explorer import Label
from evidence.models.leader_steps import ENTRY, RECORD
from evidence.models.ledger import History, Message
from evidence.models.state import Table

_READS = {"ran": "runs", "late": "is dropped as late", "copy": "is dropped as a copy"}


@dataclass(slots=True)
class Arrivals:
    """The ends of messages; each question to the shipped code is asked once."""

    _copies: Table
    _reached: set[str]
    _look: Callable[..., tuple[bool, VersionedValue | None]] = field(init=False)
    _mark: Callable[[int, int], str] = field(init=False)

    def __post_init__(self) -> None:
        self._look = cache(self._looked)
        self._mark = cache(lambda *tick: leader_steps.mark_of(leader_steps.tick_of(*tick)))

    def of(
        self, messages: tuple[Message, ...], copies: tuple[int, ...], history: History
    ) -> Iterator[tuple[Label, tuple[Message, ...], str]]:
        """
        Yield how a message may arrive: how it reads, the messages then, and what that breaks.

        The worker reads any quorum of the nodes at one instant, and acts upon it at the same.
        """
        for at, (token, due, end) in enumerate(messages):
            if end != "sent":
                continue
            ends = set()
            for nodes in itertools.combinations(range(len(copies)), quorum(len(copies))):
                asked = tuple(copies[node] for node in nodes)
                end, danger = self._end(messages, asked, history, token, due, len(copies))
                if danger or end not in ends:
                    ends.add(end)
                    self._reached.add(f"message: {end}")
                    places = " and ".join(f"{{{index}}}" for index in range(len(nodes)))
                    text = f"the tick of {due} s by token {token} meets {places}: it {_READS[end]}"
                    then = (*messages[:at], (token, due, end), *messages[at + 1 :])
                    yield (text, nodes), then, danger

    def _end(
        self,
        messages: tuple[Message, ...],
        asked: tuple[int, ...],
        history: History,
        token: int,
        due: int,
        count: int,
    ) -> tuple[str, str]:
        late, recorded = self._look(token, due, asked, count)
        if late:
            assert recorded is not None
            return "late", ledger.dropped_for_nothing(messages, history, token, due, recorded)
        mark = self._mark(token, due)
        if any(self._mark(by, then) == mark for by, then, end in messages if end == "ran"):
            return "copy", ""
        twice = ledger.ran_twice((*messages, (token, due, "ran")))
        return "ran", twice or ledger.ran_late(history, token, due)

    def _looked(
        self, token: int, due: int, asked: tuple[int, ...], count: int
    ) -> tuple[bool, VersionedValue | None]:
        asks = read_register(RECORD, 0, [ENTRY])
        votes = [run_command(self._copies.things[copy], asks)[1] for copy in asked]
        return leader_steps.arrive(leader_steps.tick_of(token, due), votes, count)
