"""
Giving keys up: of one lease, of all leases of a client at once, or somebody else's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from celery_redlock.core.reservation import Reservation
from celery_redlock.protocol import Command, Phase, ReleaseRound, Round, extend
from celery_redlock.transport import AckedNodes

if TYPE_CHECKING:
    from celery_redlock.core.lease import Lease
    from celery_redlock.transport import Channel, Transport

#: Releases that go to a node in one piece; more would hold up the node's other clients.
_BATCH = 100

#: Exchanges in a row without a quorum after which the nodes count as gone.
_MAX_SILENT = 5

#: Seconds for which what is handed back lasts until it is lengthened on the nodes that are known to
#: have it. A node that sets it late keeps it no longer than this.
HANDBACK_TTL = 10.0

#: So long are nodes waited for that are not needed for the quorum, before a hand back is lengthened
#: where it was acknowledged: on all nodes it bears more than on a bare quorum.
_LINGER = 0.05


def release_leases(transport: Transport, leases: Sequence[Lease]) -> bool:
    """
    Release leases of one client, many in one exchange: each can take as long as a node's answer.

    When several exchanges in a row had no quorum, the rest is sent without waiting: there may be
    thousands, and nodes that are gone would be waited for each time.

    Returns:
        Whether there was any to release, and a quorum of nodes still had each.
    """
    released = bool(leases)
    silent = 0
    for at in range(0, len(leases), _BATCH):
        batch = leases[at : at + _BATCH]
        phases = _release_batch(transport, batch, wait=silent < _MAX_SILENT)
        released = released and phases == {Phase.GRANTED}
        silent = silent + 1 if phases <= {Phase.UNAVAILABLE, Phase.VOTING} else 0
    return released


def _release_batch(transport: Transport, leases: Sequence[Lease], *, wait: bool) -> set[Phase]:
    """Release leases in one exchange, and return how their rounds have ended."""
    nodes = len(transport.names)
    batch = [(lease.release_command(), ReleaseRound(nodes)) for lease in leases]
    node_timeout = min(lease.node_timeout for lease in leases) if wait else 0.0
    channel = send_release(transport, batch, node_timeout)
    for lease, (command, _) in zip(leases, batch, strict=True):
        lease.after_release(command, channel)
    return {round_.phase for _, round_ in batch}


def send_release(
    transport: Transport,
    batch: Sequence[tuple[Command, ReleaseRound]],
    node_timeout: float,
    *,
    reservation: Reservation | None = None,
) -> Channel:
    """
    Send releases to all nodes, wait for a quorum, and return the channel that was used.

    Args:
        transport: to the nodes.
        batch: releases, with the rounds that count their votes.
        node_timeout: seconds in which a node has to answer.
        reservation: a reservation to which the only release leaves keys; it is lengthened.
    """
    channel = transport.checkout()
    try:
        channel.connect(math.inf if node_timeout else 0.0)
        if reservation is None:
            channel.exchange(batch, node_timeout)
        else:
            [(command, round_)] = batch
            _hand_over(transport, channel, (command, round_), node_timeout, reservation)
    except BaseException:
        # A time limit or Ctrl-C in the middle: not every node may have been told.
        try:
            for command, _ in batch:
                channel.send(command)
        finally:
            transport.discard(channel)
        raise
    transport.checkin(channel)
    return channel


def release_to(
    transport: Transport, command: Command, reservation: Reservation, node_timeout: float
) -> tuple[bool, Channel]:
    """
    Send a release that leaves keys to a reservation for a short time, and lengthen that.

    Returns:
        Whether a quorum had the keys, and the channel that was used.
    """
    round_ = ReleaseRound(len(transport.names))
    channel = send_release(transport, [(command, round_)], node_timeout, reservation=reservation)
    return round_.phase is Phase.GRANTED, channel


def _hand_over(
    transport: Transport,
    channel: Channel,
    releasing: tuple[Command, Round],
    node_timeout: float,
    reservation: Reservation,
) -> None:
    """Release, and let the reservation last where it cannot have been used up before it was set."""
    acked = AckedNodes()
    channel.exchange([releasing], node_timeout, linger=min(node_timeout, _LINGER), acked=acked)
    left = reservation.left_ms(transport.wall_us())
    if releasing[1].phase is not Phase.GRANTED or left <= 0:
        return
    # Its message may be out: somebody may have taken it over on a quorum and be done with it while
    # one of these nodes still had our keys. Not if a quorum shows it now, when all of them have it:
    # whoever takes it over later finds it there, or clears that node.
    nodes = sorted(acked)
    check = ReleaseRound(len(transport.names))
    channel.exchange(
        [(extend(reservation.node_keys, reservation.owner, 1, 0), check)], node_timeout
    )
    if check.phase is Phase.GRANTED:
        channel.send(extend(reservation.node_keys, reservation.owner, left, 0), nodes)
