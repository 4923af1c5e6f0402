"""
Memory nodes that record the commands they receive, for pictures of what has happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from celery_redlock import Redlock
from celery_redlock.core import client_of
from celery_redlock.protocol.commands import Command, Script
from celery_redlock.protocol.keys import fence_key
from celery_redlock.protocol.rounds import TRANSITIONS, AcquireRound, Phase
from celery_redlock.protocol.votes import Vote
from celery_redlock.transport.memory import MemoryNode, MemoryTransport, VirtualTime

__all__ = ["Note", "Record"]

#: In which phase answers to a command count.
AWAITED = {Script.ACQUIRE: Phase.VOTING, Script.RAISE: Phase.RAISING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """
    One thing that a node did.

    Attributes:
        at: seconds since the beginning.
        node: its position.
        kind: the script of the command.
        vote: its reply; None where it gave none.
        late: it did so when it was resumed, and no client received the reply.
    """

    at: float
    node: int
    kind: Script
    vote: Vote | None
    late: bool = False


class Record:
    """
    N memory nodes in virtual time, a client, and notes of all that they do.

    Args:
        counters: what each node's fence counters begin with.
        now: wall time in microseconds; a small number makes tokens that fit into a picture.
    """

    def __init__(self, counters: Sequence[int], now: int) -> None:
        self.notes: list[Note] = []
        self.time = VirtualTime(now / 1e6)
        self._begun = self.time.now()
        self.nodes = [_Noted(self, place) for place in range(len(counters))]
        self.client = Redlock([node.name for node in self.nodes])
        client_of(self.client).transport = MemoryTransport(self.nodes)
        self._counters = list(counters)

    def __len__(self) -> int:
        return len(self.nodes)

    def count_from(self, key: str) -> None:
        """Give the nodes the counters with which they begin, for one key."""
        fence = fence_key(client_of(self.client).key_of(key).stored)
        for node, counter in zip(self.nodes, self._counters, strict=True):
            if counter:
                node.state.fences[fence] = counter

    def note(self, node: int, command: Command, vote: Vote | None, *, late: bool = False) -> None:
        """Write something down."""
        at = self.time.now() - self._begun
        self.notes.append(Note(at=at, node=node, kind=command.script, vote=vote, late=late))

    @property
    def waiting_in(self) -> frozenset[Phase]:
        """The phases in which answers are awaited."""
        return frozenset(TRANSITIONS)

    @property
    def token(self) -> int:
        """The fencing token of the attempt."""
        return self._counted()[0].token

    def phases(self) -> list[Phase | None]:
        """
        Return the phase of the attempt after each reply, counted as the client does.

        None means a reply to a command that was decided before, which counts no more.
        """
        return self._counted()[1]

    def _counted(self) -> tuple[AcquireRound, list[Phase | None]]:
        round_ = AcquireRound(
            len(self),
            sent_at=0.0,
            ttl=client_of(self.client).settings.ttl,
            drift_factor=client_of(self.client).settings.drift_factor,
        )
        phases: list[Phase | None] = []
        for note in self.notes:
            awaited = AWAITED.get(note.kind)
            if awaited is None or note.vote is None or note.late:
                continue
            counts = round_.phase is awaited
            phases.append(round_.vote(note.node, note.vote, 0.0) if counts else None)
        return round_, phases


class _Noted(MemoryNode):
    """A memory node that has what it does written down."""

    def __init__(self, record: Record, place: int) -> None:
        super().__init__(f"memory://picture-{place}", record.time)
        self._record = record
        self._place = place

    def execute(self, command: Command) -> Vote | None:
        vote = super().execute(command)
        self._record.note(self._place, command, vote)
        return vote

    def resume(self) -> None:
        held_up, self._backlog = self._backlog, []
        super().resume()
        for command in held_up:
            vote = self.state.run(command, self.now_us())
            self._record.note(self._place, command, vote, late=True)
