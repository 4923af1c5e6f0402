"""
One attempt to take a lock: both rounds, and its undoing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from celery_redlock.errors import LockContended, LockNotAcquired, QuorumUnavailable
from celery_redlock.protocol import (
    AcquireRound,
    Failed,
    Phase,
    Quarantined,
    Round,
    acquire,
    milliseconds,
    owner_value,
    raise_fence,
    release,
)
from celery_redlock.transport import Channel, Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """
    What is asked for.

    Attributes:
        keys: lock keys as they stand on the nodes.
        ttl: lease length in seconds.
        label: readable suffix of the owner value.
        drift_factor: part of the TTL that clocks may differ by.
        patience: seconds in which a node has to answer.
        quarantine_ms: how long a node sits out that fails the restart guard; 0: guard off.
    """

    keys: tuple[str, ...]
    ttl: float
    label: str
    drift_factor: float
    patience: float
    quarantine_ms: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """
    How an attempt ended, with every vote.

    Attributes:
        owner: its owner value.
        round: the votes.
        channel: through which it was made.
        unsettled: nodes where it may yet set keys.
    """

    owner: str
    round: AcquireRound
    channel: Channel
    unsettled: frozenset[int]

    @property
    def phase(self) -> Phase:
        """Where its round ended."""
        return self.round.phase

    @property
    def undecided(self) -> bool:
        """Tell whether another attempt may well end otherwise although nothing has changed."""
        return self.phase is Phase.SPLIT or (
            self.phase is Phase.UNAVAILABLE
            and any(isinstance(vote, Failed) and not vote.tried for vote in self.round.votes)
        )

    @property
    def granted(self) -> bool:
        """Tell whether the lock is ours."""
        return self.round.phase is Phase.GRANTED


def attempt_once(transport: Transport, terms: Terms) -> Attempt:
    """
    Try once, with a fresh owner value.

    An attempt that is not granted, or that an exception cuts short, is undone on all nodes: the
    release is queued behind the acquire on the same connections, also where no answer came.
    """
    owner = owner_value(os.urandom(16), terms.label)
    channel = transport.checkout()
    try:
        channel.prepare()
        round_ = AcquireRound(
            len(transport.names),
            sent_at=transport.now(),
            ttl=terms.ttl,
            drift_factor=terms.drift_factor,
        )
        command = acquire(
            terms.keys, owner, milliseconds(terms.ttl), transport.wall_us(), terms.quarantine_ms
        )
        channel.exchange(((command, round_),), terms.patience)
        if round_.phase is Phase.RAISING:
            second = raise_fence(terms.keys, owner, round_.token)
            channel.exchange(((second, round_),), terms.patience)
        if round_.phase is not Phase.GRANTED:
            channel.post(release(terms.keys, owner, 0))
        unsettled = channel.unsettled()
    except BaseException:
        # A time limit or Ctrl-C in the middle leaves the channel in an unknown state.
        try:
            channel.post(release(terms.keys, owner, 0))
        finally:
            transport.discard(channel)
        raise
    transport.checkin(channel)
    return Attempt(owner, round_, channel, unsettled)


def failure(attempt: Attempt, key: str, names: tuple[str, ...], waited: float) -> LockNotAcquired:
    """Return the error that says why an attempt was not granted."""
    round_ = attempt.round
    after = f" within {waited:g} s" if waited else ""
    if round_.phase in (Phase.CONTENDED, Phase.SPLIT):
        holder = round_.holder()
        split = round_.phase is Phase.SPLIT
        if holder is None or split:
            text = (
                f"Lock {key!r} was not taken{after}: several contenders share the nodes and none "
                "holds a quorum. Try again."
            )
        else:
            text = (
                f"Lock {key!r} is held by {holder.owner!r} for up to {holder.expires_in:.3g} s "
                f"more unless renewed; not taken{after}. Wait longer, or try again later."
            )
        return LockContended(
            text,
            key,
            holder.owner if holder else None,
            holder.expires_in if holder else None,
            split,
        )
    nodes = reasons(round_, names)
    if round_.phase is Phase.LATE:
        nodes.setdefault("this process", "took the answers only when the lease had all but ended")
    listed = "; ".join(f"{name}: {why}" for name, why in nodes.items())
    return QuorumUnavailable(
        f"Lock {key!r} needs {round_.needed} of {len(names)} nodes; not taken{after}. {listed}.",
        key,
        nodes,
    )


def reasons(round_: Round, names: tuple[str, ...]) -> dict[str, str]:
    """Return why each node did not help, where it is the node's doing."""
    found = {}
    for name, vote in zip(names, round_.votes, strict=True):
        # None: it had not answered yet when the others had decided, which is nobody's fault.
        if isinstance(vote, Failed):
            found[name] = vote.reason
        elif isinstance(vote, Quarantined):
            found[name] = (
                f"sits out {vote.remaining:.3g} s more after a restart, a loss of data or a change "
                "of role (brand-new nodes are armed by: celery-redlock init --nodes URL,...)"
            )
    return found
