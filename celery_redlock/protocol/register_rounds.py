"""
The rounds that write and read a register.
"""

from __future__ import annotations

from typing import ClassVar

from celery_redlock.protocol.rounds import Phase, Round
from celery_redlock.protocol.votes import (
    Acknowledged,
    RegisterContents,
    Superseded,
    VersionedValue,
    Vote,
)


class _RegisterRound(Round):
    """
    What both rounds share.

    GRANTED: a quorum of nodes has done what was said. SUPERSEDED: no quorum can any more, and a
    newer token is among the reasons. UNAVAILABLE: none can, for want of answers.

    One node that has seen a newer token decides nothing. The newer holder has only begun then, and
    has not read yet what is written here; and a single node with a wrong number could veto for
    ever.

    Attributes:
        newest_token: the newest token that a node has told of; 0 if none did.
    """

    __slots__ = ("_acks", "_lost", "newest_token")

    _expected: ClassVar[type[Vote]]

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes)
        self.newest_token = 0
        self._acks = 0
        self._lost = 0

    def vote(self, node: int, vote: Vote, now: float) -> Phase:
        """Count one node's answer and return the phase after it."""
        if self._phase is not Phase.VOTING or self.votes[node] is not None:
            return self._phase
        self.votes[node] = vote
        if type(vote) is self._expected:
            self._acks += 1
            return self._enter(Phase.GRANTED) if self._acks >= self.needed else self._phase
        self._lost += 1
        if type(vote) is Superseded:
            self.newest_token = max(self.newest_token, vote.token)
        if self._impossible(self._lost):
            return self._enter(Phase.SUPERSEDED if self.newest_token else Phase.UNAVAILABLE)
        return self._phase


class RegisterWriteRound(_RegisterRound):
    """
    One write of fields under a fencing token.

    Guarantee: when the phase is GRANTED, every claim with a newer token that is granted afterwards,
    or was under way, tells what was written, as long as no quorum of nodes loses its data. Limit:
    in any other phase it may be on some nodes, and a later claim may or may not tell it.
    """

    __slots__ = ()

    _expected = Acknowledged


class RegisterReadRound(_RegisterRound):
    """
    One look at a register, with a token also a promise.

    Guarantee: when the phase is GRANTED, what a write has put on a quorum before is in `fields`, or
    something newer; or it is named in `truncated`. If a token was given, that holds for whatever
    older tokens will ever put on a quorum. Limit: `fields` may also have what reached only a
    minority; and a field that a minority still has is told although a quorum has deleted it.
    """

    __slots__ = ()

    _expected = RegisterContents

    def fields(self) -> dict[str, VersionedValue]:
        """Return the newest of what the nodes have told, by name; not where one has not told it."""
        merged: dict[str, VersionedValue] = {}
        truncated = set(self.truncated())
        for vote in self.votes:
            if type(vote) is RegisterContents:
                for name, told in vote.fields.items():
                    known = merged.get(name)
                    if name not in truncated and (known is None or told.rank > known.rank):
                        merged[name] = told
        return merged

    def truncated(self) -> list[str]:
        """Return the names whose text some node has not told; they have to be asked for again."""
        names = (vote.truncated for vote in self.votes if type(vote) is RegisterContents)
        return sorted(frozenset().union(*names))
