"""
The round that only looks.
"""

from __future__ import annotations

from collections import Counter

from celery_redlock.protocol.rounds import Phase, Round
from celery_redlock.protocol.votes import KeyState, KeyStates, Vote


class InspectRound(Round):
    """
    What a quorum of nodes says about some keys.

    GRANTED: a quorum has answered; ends as soon as each key has a value that a quorum agrees on,
    or lacks on a quorum. UNAVAILABLE: too few nodes can answer.
    """

    __slots__ = ("_lost",)

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes)
        self._lost = 0

    def vote(self, node: int, vote: Vote, now: float) -> Phase:
        """Count one node's answer and return the phase after it."""
        if self._phase is not Phase.VOTING or self.votes[node] is not None:
            return self._phase
        self.votes[node] = vote
        if type(vote) is not KeyStates:
            self._lost += 1
            if self._impossible(self._lost):
                return self._enter(Phase.UNAVAILABLE)
        if self._agreed() or None not in self.votes:
            return self._enter(Phase.GRANTED)
        return self._phase

    def key_states(self) -> list[tuple[KeyState, ...]]:
        """
        Return for each key the nodes' records of the value that a quorum has, or none.

        Nodes that did not answer are taken to agree: one that is down may have been part of the
        holder's quorum, and without it nobody else gets one.
        """
        seen = [vote.states for vote in self.votes if type(vote) is KeyStates]
        silent = len(self.votes) - len(seen)
        found: list[tuple[KeyState, ...]] = []
        for told in zip(*seen, strict=True):
            owners = Counter(record.owner for record in told if record.owner is not None)
            owner, count = max(owners.items(), key=lambda item: item[1], default=(None, 0))
            held = count > 0 and count + silent >= self.needed
            found.append(tuple(it for it in told if it.owner == owner) if held else ())
        return found

    def _agreed(self) -> bool:
        seen = [vote.states for vote in self.votes if type(vote) is KeyStates]
        return len(seen) >= self.needed and all(
            max(Counter(record.owner for record in told).values()) >= self.needed
            for told in zip(*seen, strict=True)
        )
