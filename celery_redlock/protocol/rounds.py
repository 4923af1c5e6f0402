"""
Rounds: one command said to all nodes, and when its votes decide.

Whoever drives a round calls `vote` with each node's answer as it comes and stops as soon as the
phase is no longer the one that it waits in. A node that gives no answer votes `Failed` in the end,
so every round ends.

Sources: the Redlock algorithm by Salvatore Sanfilippo (quorum of SET NX PX, validity counted from
before the first send); the second round that fixes the fencing token is a Paxos-like write-back of
the largest counter to a quorum, on the condition that the keys are still ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from enum import Enum, auto

from celery_redlock.protocol.timing import drift, quorum
from celery_redlock.protocol.votes import (
    Acknowledged,
    Failed,
    Granted,
    KeyHolder,
    KeyState,
    KeyStates,
    NotHeld,
    Quarantined,
    Refused,
    Vote,
)


class Phase(Enum):
    """Where a round stands."""

    VOTING = auto()  #: answers to the first command are awaited
    RAISING = auto()  #: acquire only: a quorum is ours, the token needs the second command
    GRANTED = auto()  #: done at a quorum, in time
    CONTENDED = auto()  #: one other owner was seen on a quorum
    SPLIT = auto()  #: nobody was seen on a quorum, or our quorum fell apart: try again
    UNAVAILABLE = auto()  #: failed and quarantined nodes leave no quorum
    LATE = auto()  #: a quorum answered, but not while its answer could be trusted
    GONE = auto()  #: a quorum says that the keys are not ours
    SUPERSEDED = auto()  #: registers only: nodes have seen a newer token, and that leaves no quorum


#: Which phases may follow which; all others are final.
TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.VOTING: frozenset(Phase) - {Phase.VOTING},
    Phase.RAISING: frozenset({Phase.GRANTED, Phase.SPLIT, Phase.UNAVAILABLE, Phase.LATE}),
}


class Round:
    """
    What all rounds share: the votes, the quorum and the phase.

    Attributes:
        votes: each node's vote on the latest command, None where none came.
        needed: size of a quorum.
    """

    __slots__ = ("_phase", "needed", "votes")

    def __init__(self, nodes: int) -> None:
        self.votes: list[Vote | None] = [None] * nodes
        self.needed = quorum(nodes)
        self._phase = Phase.VOTING

    @property
    def phase(self) -> Phase:
        """Where the round stands."""
        return self._phase

    def vote(self, node: int, vote: Vote, now: float) -> Phase:
        """
        Count one node's answer and return the phase after it.

        A node has one vote on each command; whatever else is said in its name changes nothing.

        Args:
            node: position of the node.
            vote: its answer.
            now: the reading of the round's clock when the answer was taken.
        """
        raise NotImplementedError

    def _enter(self, phase: Phase) -> Phase:
        if phase not in TRANSITIONS.get(self._phase, ()):
            raise RuntimeError(f"A {self._phase.name} round cannot become {phase.name}.")
        self._phase = phase
        return phase

    def _impossible(self, without: int) -> bool:
        """Tell whether `without` nodes that will not help leave no quorum."""
        return len(self.votes) - without < self.needed


class AcquireRound(Round):
    """
    One attempt to take all keys at a quorum and to fix their fencing token.

    Guarantee: when the phase is GRANTED, a quorum of nodes had our keys, no other attempt can be
    granted before `valid_until` while clocks drift within the allowance and restarted nodes sit
    out, and `token` is larger than the token of every holder before. Limit: none of this holds for
    exclusion once this process is paused past `valid_until`; the token's order still does.

    Attributes:
        valid_until: end of trust on the round's clock, counted from `sent_at`.
        token: the largest counter that the granting nodes returned; final once GRANTED.
    """

    __slots__ = ("_exact", "_granted", "_lost", "token", "valid_until")

    def __init__(self, nodes: int, *, sent_at: float, ttl: float, drift_factor: float) -> None:
        super().__init__(nodes)
        self.valid_until = sent_at + ttl - drift(ttl, drift_factor)
        self.token = 0
        self._granted = 0  # votes for us in this phase
        self._exact = 0  # of those, how many returned exactly `token` for every key
        self._lost = 0  # failed, quarantined or (second command) no longer ours

    def vote(self, node: int, vote: Vote, now: float) -> Phase:
        """Count one node's answer and return the phase after it."""
        if self._phase is Phase.VOTING:
            if self.votes[node] is not None:
                return self._phase
            self.votes[node] = vote
            if type(vote) is Granted:
                self._granted += 1
                if vote.high > self.token:
                    self.token = vote.high
                    self._exact = 0
                if vote.low == self.token:
                    self._exact += 1
                return self._first_quorum(now)
            if type(vote) is Failed or type(vote) is Quarantined:
                self._lost += 1
            return self._without_quorum()
        if self._phase is Phase.RAISING:
            return self._second_vote(node, vote, now)
        return self._phase

    def _first_quorum(self, now: float) -> Phase:
        if self._granted < self.needed:
            return self._without_quorum()
        if now >= self.valid_until:
            return self._enter(Phase.LATE)
        # Equality on a quorum, not merely a quorum: only then does every later quorum contain a
        # node whose counter is at least the token.
        if self._exact >= self.needed:
            return self._enter(Phase.GRANTED)
        self._granted = self._lost = 0
        self.votes = [None] * len(self.votes)
        return self._enter(Phase.RAISING)

    def _second_vote(self, node: int, vote: Vote, now: float) -> Phase:
        if self.votes[node] is not None:
            return self._phase
        self.votes[node] = vote
        if type(vote) is Acknowledged:
            self._granted += 1
            if self._granted >= self.needed:
                return self._enter(Phase.GRANTED if now < self.valid_until else Phase.LATE)
        else:
            self._lost += 1
            if self._impossible(self._lost):
                failed = type(vote) is Failed
                return self._enter(Phase.UNAVAILABLE if failed else Phase.SPLIT)
        return self._phase

    def _without_quorum(self) -> Phase:
        """Decide as soon as the votes that are still out cannot change the outcome."""
        if self._impossible(self._lost):
            return self._enter(Phase.UNAVAILABLE)
        out = self.votes.count(None)
        most = self._most_seen_owner()
        if most >= self.needed:
            return self._enter(Phase.CONTENDED)
        if self._granted + out < self.needed and most + out < self.needed:
            # Several contenders share the nodes. To call this a conflict would let each of two
            # give way to the other, and the work would be done by nobody.
            return self._enter(Phase.SPLIT)
        return self._phase

    def taken_keys(self, by: str | None = None) -> set[int]:
        """
        Return the positions of the keys that one foreign owner was seen to have on a quorum.

        Args:
            by: count only this owner.
        """
        return {
            key
            for (key, owner), count in self._seen_owners().items()
            if count >= self.needed and by in (None, owner)
        }

    def _most_seen_owner(self) -> int:
        return max(self._seen_owners().values(), default=0)

    def _seen_owners(self) -> Counter[tuple[int, str]]:
        return Counter(
            (holder.key, holder.owner)
            for vote in self.votes
            if type(vote) is Refused
            for holder in vote.holders
        )

    def holder(self, preferred: Collection[int] = ()) -> KeyHolder | None:
        """
        Return the foreign owner seen most often, with the longest time that a node told.

        Args:
            preferred: positions of keys whose holder is told first if it was seen on a quorum.
        """
        seen: dict[tuple[int, str], list[KeyHolder]] = {}
        for vote in self.votes:
            if type(vote) is Refused:
                for holder in vote.holders:
                    seen.setdefault((holder.key, holder.owner), []).append(holder)
        for (key, _), told in seen.items():
            if key in preferred and len(told) >= self.needed:
                return max(told, key=lambda holder: holder.expires_in)
        if not seen:
            return None
        most = max(len(told) for told in seen.values())
        often = [holder for told in seen.values() if len(told) == most for holder in told]
        return max(often, key=lambda holder: holder.expires_in)


class ReserveRound(AcquireRound):
    """
    One attempt to take keys for somebody who will take them over, and who gets a token then.

    Guarantee and limit as for `AcquireRound`, but `token` means nothing.
    """

    __slots__ = ()

    def _first_quorum(self, now: float) -> Phase:
        if self._granted < self.needed:
            return self._without_quorum()
        return self._enter(Phase.GRANTED if now < self.valid_until else Phase.LATE)


class ExtendRound(Round):
    """
    One extension of a lease.

    It counts only at a quorum of nodes that still had our keys, answered before the trust that is
    being extended ended: a lost lease stays lost. GONE means that it can never be extended again;
    UNAVAILABLE and LATE may be tried again while the old trust lasts.

    Attributes:
        valid_until: end of trust if GRANTED, counted from `sent_at`; never before the old one.
        missing: nodes that lost our keys and nobody else has taken; a heal may set them again.
    """

    __slots__ = ("_extended", "_gone", "_lost", "_old_valid_until", "missing", "valid_until")

    def __init__(
        self, nodes: int, *, sent_at: float, ttl: float, drift_factor: float, valid_until: float
    ) -> None:
        super().__init__(nodes)
        self._old_valid_until = valid_until
        self.valid_until = max(valid_until, sent_at + ttl - drift(ttl, drift_factor))
        self.missing: list[int] = []
        self._extended = 0
        self._gone = 0
        self._lost = 0

    def vote(self, node: int, vote: Vote, now: float) -> Phase:
        """Count one node's answer and return the phase after it."""
        if self.votes[node] is not None:
            return self._phase
        self.votes[node] = vote
        if type(vote) is NotHeld and vote.missing:
            self.missing.append(node)
        if self._phase is not Phase.VOTING:
            return self._phase
        if type(vote) is Acknowledged:
            self._extended += 1
            if self._extended >= self.needed:
                return self._enter(Phase.GRANTED if now < self._old_valid_until else Phase.LATE)
            return self._phase
        self._lost += 1
        if type(vote) is NotHeld:
            self._gone += 1
        if self._impossible(self._gone):
            return self._enter(Phase.GONE)
        if self._impossible(self._lost):
            return self._enter(Phase.UNAVAILABLE)
        return self._phase


class ReleaseRound(Round):
    """One release. GRANTED: a quorum still had our keys; GONE or UNAVAILABLE: not known to."""

    __slots__ = ("_gone", "_lost", "_released")

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes)
        self._released = 0
        self._gone = 0
        self._lost = 0

    def vote(self, node: int, vote: Vote, now: float) -> Phase:
        """Count one node's answer and return the phase after it."""
        if self._phase is not Phase.VOTING or self.votes[node] is not None:
            return self._phase
        self.votes[node] = vote
        if type(vote) is Acknowledged:
            self._released += 1
            return self._enter(Phase.GRANTED) if self._released >= self.needed else self._phase
        self._lost += 1
        if type(vote) is NotHeld:
            self._gone += 1
        if self._impossible(self._gone):
            return self._enter(Phase.GONE)
        if self._impossible(self._lost):
            return self._enter(Phase.UNAVAILABLE)
        return self._phase


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
