"""
The round that writes or reads a register.
"""

from __future__ import annotations

from celery_redlock.protocol.rounds import Phase, Round
from celery_redlock.protocol.votes import (
    Acknowledged,
    RegisterContents,
    Superseded,
    VersionedValue,
    Vote,
)


class RegisterRound(Round):
    """
    One write of fields under a fencing token, or one read, which may claim with a token.

    GRANTED: a quorum of nodes executed the command. SUPERSEDED: no quorum can any more, and a newer
    token is among the reasons. UNAVAILABLE: no quorum can, because too few nodes reply.

    One node that has seen a newer token decides nothing: the newer holder has only begun and has
    not read the register yet, and a single node with a wrong number could veto every write.

    Guarantee of a write: once GRANTED, every claim with a newer token that is granted afterwards,
    or was under way, reads these fields, as long as no quorum of nodes loses its data. Limit: in
    any other phase some nodes may have them, and a later claim may or may not read them.

    Guarantee of a read: once GRANTED, `fields` has every value that a quorum has acknowledged, or a
    newer one, or `truncated` has its name. A claim shuts out older tokens, so for it this holds for
    every value that these will ever write. Limit: `fields` may also have values that reached only a
    minority, and fields that a quorum has deleted but a minority still has.

    Args:
        nodes: the number of nodes.
        expected: the vote of a node that has executed the command.

    Attributes:
        newest_token: the newest token that a node has reported; 0 if none did.
    """

    __slots__ = ("_acks", "_expected", "_lost", "newest_token")

    def __init__(self, nodes: int, expected: type[Acknowledged] | type[RegisterContents]) -> None:
        super().__init__(nodes)
        self.newest_token = 0
        self._expected = expected
        self._acks = 0
        self._lost = 0

    def vote(self, node: int, vote: Vote, now: float) -> Phase:
        """Count one node's reply and return the phase after it."""
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

    def fields(self) -> dict[str, VersionedValue]:
        """Return the newest values by name, without the names in `truncated`."""
        merged: dict[str, VersionedValue] = {}
        truncated = set(self.truncated())
        for vote in self.votes:
            if type(vote) is RegisterContents:
                for name, value in vote.fields.items():
                    known = merged.get(name)
                    if name not in truncated and (known is None or value.rank > known.rank):
                        merged[name] = value
        return merged

    def truncated(self) -> list[str]:
        """Return the names that some node has omitted; they have to be read again."""
        names = (vote.truncated for vote in self.votes if type(vote) is RegisterContents)
        return sorted(frozenset().union(*names))
