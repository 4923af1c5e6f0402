"""
Giving leases up: one, or all of a client at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from celery_redlock.core.watchdog import process_watchdog
from celery_redlock.protocol import Phase, ReleaseRound

if TYPE_CHECKING:
    from celery_redlock.core.lease import Lease
    from celery_redlock.transport import Transport

#: Releases that go to a node in one piece; more would hold up the node's other clients.
_BATCH = 100


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
    channel = transport.checkout(native=process_watchdog().runs_here())
    try:
        channel.prepare()
        channel.exchange(batch, min(lease.patience for lease in leases))
    except BaseException:
        # A time limit or Ctrl-C in the middle: not every node may have been told.
        try:
            for command, _ in batch:
                channel.post(command)
        finally:
            transport.discard(channel)
        raise
    transport.checkin(channel)
    for lease, (command, _) in zip(leases, batch, strict=True):
        lease.settle_release(command, channel)
    return all(round_.phase is Phase.GRANTED for _, round_ in batch)
