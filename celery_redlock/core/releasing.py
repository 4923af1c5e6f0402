"""
Giving keys up: of one lease, of all leases of a client at once, or somebody else's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from celery_redlock.core.reservation import Reservation
from celery_redlock.core.watchdog import process_watchdog
from celery_redlock.protocol import Command, Phase, ReleaseRound, extend
from celery_redlock.transport import Done

if TYPE_CHECKING:
    from celery_redlock.core.lease import Lease
    from celery_redlock.transport import Channel, Transport

#: Releases that go to a node in one piece; more would hold up the node's other clients.
_BATCH = 100

#: What is handed back lives so long until it is lengthened where the nodes have said that they have
#: it. A node that was stopped and sets it late keeps it no longer than this.
HAND_BACK_GRACE = 10.0

#: So long are nodes waited for that are not needed for the quorum, before a hand back is lengthened
#: where it was acknowledged: on all nodes it bears more than on a bare quorum.
_LINGER = 0.05


def release_leases(transport: Transport, leases: Sequence[Lease]) -> bool:
    """
    Release leases of one client; in one exchange, because each can take as long as a node's answer.

    Returns:
        Whether there was any to release, and a quorum of nodes still had each.
    """
    told = [_tell(transport, leases[at : at + _BATCH]) for at in range(0, len(leases), _BATCH)]
    return all(told) and bool(leases)


def _tell(transport: Transport, leases: Sequence[Lease]) -> bool:
    nodes = len(transport.names)
    batch = [(lease.release_command(), ReleaseRound(nodes)) for lease in leases]
    channel = say_release(transport, batch, min(lease.patience for lease in leases))
    for lease, (command, _) in zip(leases, batch, strict=True):
        lease.settle_release(command, channel)
    return all(round_.phase is Phase.GRANTED for _, round_ in batch)


def say_release(
    transport: Transport,
    batch: Sequence[tuple[Command, ReleaseRound]],
    patience: float,
    *,
    linger: float = 0.0,
    done: Done | None = None,
) -> Channel:
    """Say releases to all nodes, wait for a quorum, and return the channel that was used."""
    channel = transport.checkout(native=process_watchdog().runs_here())
    try:
        channel.prepare()
        channel.exchange(batch, patience, linger=linger, done=done)
    except BaseException:
        # A time limit or Ctrl-C in the middle: not every node may have been told.
        try:
            for command, _ in batch:
                channel.post(command)
        finally:
            transport.discard(channel)
        raise
    transport.checkin(channel)
    return channel


def say_and_lengthen(
    transport: Transport, command: Command, given: Reservation, patience: float
) -> tuple[bool, Channel]:
    """
    Say a release that leaves keys to a reservation for a short time, and lengthen that.

    Returns:
        Whether a quorum had the keys, and the channel that was used.
    """
    round_ = ReleaseRound(len(transport.names))
    done = Done()
    channel = say_release(
        transport,
        [(command, round_)],
        patience,
        linger=min(patience, _LINGER),
        done=done,
    )
    follow_up(transport, channel, given, done)
    return round_.phase is Phase.GRANTED, channel


def follow_up(transport: Transport, channel: Channel, given: Reservation, done: Done) -> None:
    """Lengthen a reservation to its end, on the nodes that are known to be done with setting it."""
    left = given.left_ms(transport.wall_us())
    if left > 0:
        transport.follow(channel, extend(given.keys, given.owner, left, 0), done)
