"""
One attempt to take a lock: both rounds, and its undoing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from celery_redlock.core.reservation import Reservation
from celery_redlock.protocol import (
    AcquireRound,
    Failed,
    Phase,
    ReleaseAction,
    ReserveRound,
    acquire,
    candidate_above,
    milliseconds,
    owner_value,
    raise_fence,
    release,
)
from celery_redlock.protocol.keys import META_PREFIX
from celery_redlock.transport import AckedNodes, Channel, Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireParams:
    """
    What is asked for.

    Attributes:
        node_keys: lock keys as they stand on the nodes.
        ttl: lease length in seconds.
        label: readable suffix of the owner value.
        drift_factor: part of the TTL that clocks may differ by.
        node_timeout: seconds in which a node has to answer.
        quarantine_ms: how long a node sits out that fails the restart guard; 0: guard off.
        previous: a reservation whose keys are taken over.
        as_reservation: the keys are reserved for whoever takes them over, who gets the token.
    """

    node_keys: tuple[str, ...]
    ttl: float
    label: str
    drift_factor: float
    node_timeout: float
    quarantine_ms: int
    previous: Reservation | None = None
    as_reservation: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """
    How an attempt ended, with every vote.

    Attributes:
        owner: its owner value.
        round: the votes.
        channel: through which it was made.
        nodes_in_doubt: nodes where it may yet set keys.
        acked: nodes that have done what was said last, where anybody wants to know; grows with late
            answers.
    """

    owner: str
    round: AcquireRound
    channel: Channel
    nodes_in_doubt: frozenset[int]
    acked: AckedNodes | None = None

    @property
    def phase(self) -> Phase:
        """Where its round ended."""
        return self.round.phase

    @property
    def is_undecided(self) -> bool:
        """Tell whether another attempt may well end otherwise although nothing has changed."""
        return self.phase is Phase.SPLIT or (
            self.phase is Phase.UNAVAILABLE
            and any(isinstance(vote, Failed) and not vote.attempted for vote in self.round.votes)
        )

    @property
    def is_granted(self) -> bool:
        """Tell whether the lock is ours."""
        return self.round.phase is Phase.GRANTED

    def nodes_not_taken_over(self) -> AckedNodes:
        """Return the nodes that are not known to have given up what we took over."""
        return AckedNodes(set(range(len(self.round.votes))) - (self.acked or set()))


def attempt_once(transport: Transport, params: AcquireParams) -> Attempt:
    """
    Try once, with a fresh owner value.

    An attempt that is not granted, or that an exception cuts short, is undone on all nodes: the
    release is queued behind the acquire on the same connections, also where no answer came.
    """
    owner = ""
    previous = params.previous
    acked: AckedNodes | None = (
        None if previous is None and not params.as_reservation else AckedNodes()
    )
    channel = transport.checkout()
    try:
        channel.connect()
        candidate = transport.wall_us()
        if previous is not None:
            candidate = max(candidate, candidate_above(previous.owner, candidate))
        owner = owner_value(os.urandom(16), candidate, params.label)
        round_ = (ReserveRound if params.as_reservation else AcquireRound)(
            len(transport.names),
            sent_at=transport.now(),
            ttl=params.ttl,
            drift_factor=params.drift_factor,
        )
        command = acquire(
            params.node_keys,
            owner,
            milliseconds(params.ttl),
            candidate,
            params.quarantine_ms,
            "" if previous is None else previous.owner,
        )
        channel.exchange(((command, round_),), params.node_timeout, acked=acked)
        if round_.phase is Phase.RAISING:
            second = raise_fence(params.node_keys, owner, round_.token)
            acked = (
                None if acked is None else AckedNodes()
            )  # who is silent now may have been stopped since
            channel.exchange(((second, round_),), params.node_timeout, acked=acked)
        if previous is not None and _is_held_by_another(round_, params, previous):
            acked = None
        if round_.phase is not Phase.GRANTED:
            _undo(transport, channel, params, owner, acked)
        nodes_in_doubt = channel.nodes_in_doubt()
    except BaseException:
        # A time limit or Ctrl-C in the middle leaves the channel in an unknown state.
        try:
            channel.send(release(params.node_keys, owner, 0))
        finally:
            transport.discard(channel)
        raise
    transport.checkin(channel)
    return Attempt(owner, round_, channel, nodes_in_doubt, acked)


def _is_held_by_another(round_: AcquireRound, params: AcquireParams, previous: Reservation) -> bool:
    """
    Tell whether a quorum has shown that the reservation, or its message, is in other hands.

    Then there is nobody to give it back to: what a minority got back would only be in the way.
    """
    return any(
        params.node_keys[at] in previous.node_keys or params.node_keys[at].startswith(META_PREFIX)
        for at in round_.taken_keys()
    )


def _undo(
    transport: Transport,
    channel: Channel,
    params: AcquireParams,
    owner: str,
    acked: AckedNodes | None,
) -> None:
    """Release on all nodes, and give back what was taken over."""
    undoing = release(params.node_keys, owner, 0)
    previous = params.previous
    remaining_ms = 0 if previous is None else previous.left_ms(transport.wall_us())
    if previous is None or remaining_ms <= 0:
        channel.send(undoing)
        return
    # Only to nodes that are known to be done with the acquire. One that is stopped may run it when
    # the message has long been dealt with, and what it then gave back would block the key.
    channel.drain()
    nodes = sorted(acked or ())
    actions = dict.fromkeys(previous.node_keys, ReleaseAction(remaining_ms, previous.owner))
    channel.send(release(params.node_keys, owner, 0, actions=actions), nodes)
    channel.send(undoing, [node for node in range(len(transport.names)) if node not in nodes])
