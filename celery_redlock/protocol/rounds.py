"""
Rounds: the votes of all nodes on one command, and when they decide.

The caller passes each node's reply to `vote` as it comes and stops as soon as the phase changes. It
passes `Failed` for a node that does not reply in time, so every round ends.

Sources: the Redlock algorithm by Salvatore Sanfilippo (quorum of SET NX PX, validity counted from
before the first send); the second round that fixes the fencing token is a Paxos-like write-back of
the largest counter to a quorum, on the condition that the keys are still ours.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from enum import Enum, auto

from celery_redlock.protocol.keys import GOES_FIRST
from celery_redlock.protocol.timing import drift, quorum
from celery_redlock.protocol.votes import (
    Acknowledged,
    Failed,
    Granted,
    KeyHolder,
    KeyState,
    KeyStates,
    LeaseVotes,
    NotHeld,
    Quarantined,
    Refused,
    RegisterContents,
    Superseded,
    VersionedValue,
    Vote,
)


class Phase(Enum):
    """The state of a round."""

    VOTING = auto()  #: waits for replies to the first command
    RAISING = auto()  #: acquire only: has a quorum, waits for replies to the second command
    GRANTED = auto()  #: a quorum executed the command in time
    CONTENDED = auto()  #: one other owner has a quorum
    SPLIT = auto()  #: no owner has a quorum, or ours fell apart: try again
    UNAVAILABLE = auto()  #: failed and quarantined nodes leave no quorum
    LATE = auto()  #: a quorum executed the command, but too late
    GONE = auto()  #: a quorum replied that the keys are not ours
    SUPERSEDED = auto()  #: registers only: nodes have seen a newer token, and that leaves no quorum


#: Each phase with its possible next phases; all others are final.
TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.VOTING: frozenset(Phase) - {Phase.VOTING},
    Phase.RAISING: frozenset({Phase.GRANTED, Phase.SPLIT, Phase.UNAVAILABLE, Phase.LATE}),
}


class Round(ABC):
    """
    Base of all rounds: the votes, the quorum and the phase.

    Attributes:
        votes: each node's vote on the latest command, or None.
        needed: size of a quorum.
        phase: the current phase.
    """

    __slots__ = ("needed", "phase", "votes")

    def __init__(self, nodes: int) -> None:
        self.votes: list[Vote | None] = [None] * nodes
        self.needed = quorum(nodes)
        self.phase = Phase.VOTING

    @abstractmethod
    def vote(self, node: int, vote: Vote, now: float) -> Phase:
        """
        Count one node's reply and return the phase after it.

        A node has one vote on each command; further votes are ignored.

        Args:
            node: position of the node.
            vote: its reply.
            now: the reading of the round's clock when the reply was received.
        """

    def nodes_without(self, kind: type[Vote]) -> list[int]:
        """Return the nodes whose vote on the latest command is not of this kind, or is missing."""
        return [node for node, vote in enumerate(self.votes) if type(vote) is not kind]

    def _enter(self, phase: Phase) -> Phase:
        if phase not in TRANSITIONS.get(self.phase, ()):
            raise RuntimeError(f"A {self.phase.name} round cannot become {phase.name}.")
        self.phase = phase
        return phase

    def _impossible(self, without: int) -> bool:
        """Return whether the nodes without these `without` ones are fewer than a quorum."""
        return len(self.votes) - without < self.needed


class AcquireRound(Round):
    """
    One attempt to acquire all keys on a quorum and to fix their fencing token.

    Guarantee: once GRANTED, a quorum of nodes had our keys, no other attempt can be granted before
    `valid_until` while clocks drift within the allowance and restarted nodes are in quarantine, and
    `token` is larger than the token of every earlier holder. Limit: nothing excludes others once
    this process is paused past `valid_until`; the order of the tokens still holds.

    Attributes:
        valid_until: end of validity on the round's clock, counted from `sent_at`.
        token: the largest counter that the granting nodes returned; final once GRANTED.
        slots: the slot of each limited key; final once RAISING or GRANTED.
    """

    __slots__ = ("_exact", "_granted", "_lost", "token", "valid_until")

    slots: tuple[int, ...] = ()

    def __init__(self, nodes: int, *, sent_at: float, ttl: float, drift_factor: float) -> None:
        super().__init__(nodes)
        self.valid_until = sent_at + ttl - drift(ttl, drift_factor)
        self.token = 0
        self._granted = 0  # votes for us in this phase
        self._exact = 0  # of those, how many returned exactly `token` for every key
        self._lost = 0  # failed, quarantined or (second command) no longer ours

    def vote(self, node: int, vote: Vote, now: float) -> Phase:
        """Count one node's reply and return the phase after it."""
        if self.phase is Phase.VOTING:
            if self.votes[node] is not None:
                return self.phase
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
        if self.phase is Phase.RAISING:
            return self._second_vote(node, vote, now)
        return self.phase

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
            return self.phase
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
        return self.phase

    def _without_quorum(self) -> Phase:
        """Decide as soon as the missing votes cannot change the outcome."""
        if self._impossible(self._lost):
            return self._enter(Phase.UNAVAILABLE)
        out = self.votes.count(None)
        if out + self._granted + self._lost == len(self.votes):
            return self.phase  # no node has refused
        if self._is_taken():
            return self._enter(Phase.CONTENDED)
        if self._granted + out < self.needed and not self._is_taken(out):
            # Several contenders share the nodes. If this counted as a conflict, two of them could
            # each give way to the other, and neither would run.
            return self._enter(Phase.SPLIT)
        return self.phase

    def taken_keys(self, by: str | None = None) -> set[int]:
        """
        Return the positions of the keys that one foreign owner has on a quorum.

        Args:
            by: count only this owner.
        """
        return {
            key
            for (key, owner), count in self._seen_owners().items()
            if count >= self.needed and by in (None, owner)
        }

    def _is_taken(self, out: int = 0) -> bool:
        """Return whether one foreign owner has a key on a quorum, if `out` more votes name it."""
        return max(self._seen_owners().values(), default=0) + out >= self.needed

    def _seen_owners(self) -> Counter[tuple[int, str]]:
        return Counter(
            (holder.key, holder.owner)
            for vote in self.votes
            if type(vote) is Refused
            for holder in vote.holders
        )

    def owners(self) -> set[str]:
        """Return all foreign owners of keys."""
        return {owner for _, owner in self._seen_owners()}

    def full(self) -> list[int]:
        """Return the positions of the limited keys that are taken."""
        return []

    def refused(self) -> list[int]:
        """Return the positions of the limited keys that a quorum refuses."""
        return []

    def turn_in(self) -> float:
        """Return in how many seconds it is the turn of this attempt at a key with a rate."""
        return 0.0

    def before(self) -> int:
        """Return how many come before this attempt, on the node that knows of most."""
        return max((vote.before for vote in self.votes if type(vote) is Refused), default=0)

    def holder(self, of: Collection[int] | None = None) -> KeyHolder | None:
        """
        Return the foreign owner on most nodes, with its latest expiry.

        Args:
            of: look at the keys at these positions only.
        """
        seen: dict[tuple[int, str], list[KeyHolder]] = {}
        for vote in self.votes:
            if type(vote) is Refused:
                for holder in vote.holders:
                    if of is None or holder.key in of:
                        seen.setdefault((holder.key, holder.owner), []).append(holder)
        if not seen:
            return None
        most = max(len(holders) for holders in seen.values())
        often = [holder for holders in seen.values() if len(holders) == most for holder in holders]
        return max(often, key=lambda holder: holder.expires_in)


class SlotRound(AcquireRound):
    """
    One attempt to acquire keys of which some have a limit, so that nodes may grant different slots.

    If a quorum granted the same slot with the same counters, it is GRANTED. Otherwise it is
    RAISING: the second command sets the slot that most nodes granted on all nodes where it is free,
    and fixes the token of that slot. A key with a limit is taken once a quorum shows a foreign
    owner of each of its slots; a key with a rate once a quorum refuses it, because each of these
    nodes has given this attempt its turn.

    Guarantee and limit as for `AcquireRound`, for each slot: tokens of different slots of one key
    have no order.

    Args:
        nodes: the number of nodes.
        places: the number of slots of each key; 1 for an ordinary key.
        rates: the positions of the keys with a rate.
    """

    __slots__ = ("_places", "_rates", "slots")

    def __init__(
        self,
        nodes: int,
        *,
        sent_at: float,
        ttl: float,
        drift_factor: float,
        places: Sequence[int],
        rates: Collection[int] = (),
    ) -> None:
        super().__init__(nodes, sent_at=sent_at, ttl=ttl, drift_factor=drift_factor)
        self.slots = ()
        self._rates = tuple(rates)
        self._places = tuple(places)

    def _first_quorum(self, now: float) -> Phase:
        if self._granted >= self.needed:
            grants = [vote for vote in self.votes if type(vote) is Granted]
            chosen, count = Counter(vote.slots for vote in grants).most_common(1)[0]
            self.slots = chosen
            if count < self.needed:
                self._exact = 0
        return super()._first_quorum(now)

    def full(self, out: int = 0) -> list[int]:
        """Return the positions of the keys that are taken, if `out` more votes agree."""
        seen: Counter[tuple[int, str]] = Counter()
        for (place, owner), count in self._seen_owners().items():
            # Nodes may name different waiters that go first, but each refuses this attempt.
            seen[place, GOES_FIRST if owner.startswith(GOES_FIRST) else owner] += count
        most: dict[int, int] = {}
        for (place, _), count in seen.items():
            most[place] = max(most.get(place, 0), count)
        refused = set(self.refused(out))
        return [
            key
            for key, places in enumerate(self._ranges())
            if (key in self._rates and key in refused)
            or all(most.get(place, 0) + out >= self.needed for place in places)
        ]

    def refused(self, out: int = 0) -> list[int]:
        """
        Return the positions of the keys that a quorum refuses, if `out` more votes do.

        On each of these nodes every slot is taken, but by different owners. The key may still be
        free: rivals may hold its last slot on a minority of nodes each.
        """
        seen: Counter[int] = Counter()
        for (place, _), count in self._seen_owners().items():
            seen[place] += count
        return [
            key
            for key, places in enumerate(self._ranges())
            if len(places) > 1 or key in self._rates
            if all(seen[place] + out >= self.needed for place in places)
        ]

    def _ranges(self) -> Iterator[range]:
        """Iterate over the places of each key."""
        first = 0
        for places in self._places:
            yield range(first, first + places)
            first += places

    def turn_in(self) -> float:
        """
        Return the seconds until it is the turn of this attempt at a key with a rate.

        The median over the nodes, which disagree when waiters arrive together; the maximum would
        leave slots idle that some nodes reserve for this attempt. After a split vote: the seconds
        until other owners no longer hold the slot that most nodes granted.
        """
        turns = sorted(
            vote.turn_in
            for vote in self.votes
            if type(vote) is Refused or (type(vote) is NotHeld and vote.turn_in)
        )
        return turns[(len(turns) - 1) // 2] if turns else 0.0

    def _is_taken(self, out: int = 0) -> bool:
        return bool(self.full(out))


class ReserveRound(AcquireRound):
    """
    One attempt to reserve keys for a holder that will take them over, and gets its token then.

    Guarantee and limit as for `AcquireRound`, but `token` means nothing.
    """

    __slots__ = ()

    def _first_quorum(self, now: float) -> Phase:
        if self._granted < self.needed:
            return self._without_quorum()
        return self._enter(Phase.GRANTED if now < self.valid_until else Phase.LATE)


class _HolderRound(Round):
    """A holder's command: GONE if a quorum cannot have its keys, UNAVAILABLE if too few reply."""

    __slots__ = ("_gone", "_lost")

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes)
        self._gone = 0
        self._lost = 0

    def _count_loss(self, vote: Vote) -> Phase:
        self._lost += 1
        if type(vote) is NotHeld:
            self._gone += 1
        if self._impossible(self._gone):
            return self._enter(Phase.GONE)
        # The nodes that have not replied may yet show that the keys are gone.
        may_be_gone = self._impossible(self._gone + self.votes.count(None))
        if self._impossible(self._lost) and not may_be_gone:
            return self._enter(Phase.UNAVAILABLE)
        return self.phase


class ExtendRound(_HolderRound):
    """
    One extension of a lease.

    It counts only if a quorum of nodes still had our keys and replied before the old validity
    ended: a lost lease stays lost. GONE means that the lease can never be extended again;
    UNAVAILABLE and LATE may be tried again while the old validity lasts.

    Attributes:
        valid_until: end of validity if GRANTED, counted from `sent_at`; never before the old one.
        missing: nodes that lost our keys, which have no other owner; a heal may set them again.
    """

    __slots__ = ("_extended", "_old_valid_until", "missing", "valid_until")

    def __init__(
        self, nodes: int, *, sent_at: float, ttl: float, drift_factor: float, valid_until: float
    ) -> None:
        super().__init__(nodes)
        self._old_valid_until = valid_until
        self.valid_until = max(valid_until, sent_at + ttl - drift(ttl, drift_factor))
        self.missing: list[int] = []
        self._extended = 0

    def vote(self, node: int, vote: Vote, now: float) -> Phase:
        """Count one node's reply and return the phase after it."""
        if self.votes[node] is not None:
            return self.phase
        self.votes[node] = vote
        if type(vote) is NotHeld and vote.missing:
            self.missing.append(node)
        if self.phase is not Phase.VOTING:
            return self.phase
        if type(vote) is Acknowledged:
            self._extended += 1
            if self._extended >= self.needed:
                return self._enter(Phase.GRANTED if now < self._old_valid_until else Phase.LATE)
            return self.phase
        return self._count_loss(vote)


class BatchRound(Round):
    """
    The rounds of several leases that each node extends in one command.

    GRANTED: every one of these rounds has left the phase VOTING, with any result.
    """

    __slots__ = ("_replies", "rounds")

    def __init__(self, rounds: Sequence[ExtendRound]) -> None:
        super().__init__(len(rounds[0].votes))
        self.rounds = rounds
        self._replies = 0

    def vote(self, node: int, vote: Vote, now: float) -> Phase:
        """Count one node's reply for each lease and return the phase after it."""
        if self.votes[node] is not None:
            return self.phase
        self.votes[node] = vote
        self._replies += 1
        if type(vote) is LeaseVotes and len(vote.votes) == len(self.rounds):
            for round_, of_lease in zip(self.rounds, vote.votes, strict=True):
                round_.vote(node, of_lease, now)
        else:
            failed = vote if type(vote) is Failed else Failed("replied for other leases")
            for round_ in self.rounds:
                round_.vote(node, failed, now)
        if (
            self.phase is Phase.VOTING
            and self._replies >= self.needed
            and all(round_.phase is not Phase.VOTING for round_ in self.rounds)
        ):
            return self._enter(Phase.GRANTED)
        return self.phase


class ReleaseRound(_HolderRound):
    """One release. GRANTED: a quorum still had our keys; GONE, UNAVAILABLE: that is not known."""

    __slots__ = ("_released",)

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes)
        self._released = 0

    def vote(self, node: int, vote: Vote, now: float) -> Phase:
        """Count one node's reply and return the phase after it."""
        if self.phase is not Phase.VOTING or self.votes[node] is not None:
            return self.phase
        self.votes[node] = vote
        if type(vote) is Acknowledged:
            self._released += 1
            return self._enter(Phase.GRANTED) if self._released >= self.needed else self.phase
        return self._count_loss(vote)


class InspectRound(Round):
    """
    One inspection of some keys.

    GRANTED: for each key a quorum replied with the same owner, or with none; or all nodes have
    replied. UNAVAILABLE: too few nodes can reply.
    """

    __slots__ = ("_lost",)

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes)
        self._lost = 0

    def vote(self, node: int, vote: Vote, now: float) -> Phase:
        """Count one node's reply and return the phase after it."""
        if self.phase is not Phase.VOTING or self.votes[node] is not None:
            return self.phase
        self.votes[node] = vote
        if type(vote) is not KeyStates:
            self._lost += 1
            if self._impossible(self._lost):
                return self._enter(Phase.UNAVAILABLE)
        if self._agreed() or None not in self.votes:
            return self._enter(Phase.GRANTED)
        return self.phase

    def key_states(self) -> list[tuple[KeyState, ...]]:
        """
        Return for each key the states on the nodes that have the quorum's owner; none without.

        Nodes that did not reply count as agreeing: one that is down may have been in the holder's
        quorum, and no other owner can get a quorum without it.
        """
        seen = self._seen()
        silent = len(self.votes) - len(seen)
        found: list[tuple[KeyState, ...]] = []
        for states in zip(*seen, strict=True):
            owners = Counter(state.owner for state in states if state.owner is not None)
            owner, count = max(owners.items(), key=lambda item: item[1], default=(None, 0))
            held = count > 0 and count + silent >= self.needed
            found.append(tuple(state for state in states if state.owner == owner) if held else ())
        return found

    def is_settled(self) -> bool:
        """Return whether an owner has a key on a quorum that replied, or no node has any owner."""
        owners = Counter(
            (at, state.owner)
            for states in self._seen()
            for at, state in enumerate(states)
            if state.owner is not None
        )
        return not owners or max(owners.values()) >= self.needed

    def _seen(self) -> list[tuple[KeyState, ...]]:
        return [vote.states for vote in self.votes if type(vote) is KeyStates]

    def _agreed(self) -> bool:
        seen = self._seen()
        return len(seen) >= self.needed and all(
            max(Counter(state.owner for state in states).values()) >= self.needed
            for states in zip(*seen, strict=True)
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
        if self.phase is not Phase.VOTING or self.votes[node] is not None:
            return self.phase
        self.votes[node] = vote
        if type(vote) is self._expected:
            self._acks += 1
            return self._enter(Phase.GRANTED) if self._acks >= self.needed else self.phase
        self._lost += 1
        if type(vote) is Superseded:
            self.newest_token = max(self.newest_token, vote.token)
        if self._impossible(self._lost):
            return self._enter(Phase.SUPERSEDED if self.newest_token else Phase.UNAVAILABLE)
        return self.phase

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
