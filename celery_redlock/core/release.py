"""
Sending releases, and handing keys over to a reservation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from celery_redlock._greenlets.unpatched import native_lock
from celery_redlock.core.reservation import Reservation
from celery_redlock.core.watchdog import process_watchdog
from celery_redlock.protocol.commands import Command, extend
from celery_redlock.protocol.rounds import Phase, ReleaseRound
from celery_redlock.protocol.votes import Vote
from celery_redlock.transport import AckedNodes, Channel, RedisTransport, Transport, borrowed

#: Seconds; TTL of handed-back keys until they are extended on the nodes that acknowledged them. A
#: node that sets them late keeps them no longer than this.
HANDBACK_TTL = 10.0

#: Seconds to wait for replies beyond the quorum before handed-back keys are extended: keys on all
#: nodes survive more failures than keys on a bare quorum.
_LINGER = 0.05


def deliver_later(transport: RedisTransport) -> None:
    """
    Let the watchdog try to deliver deferred releases, about once in a second.

    They wait for a connection to a node; no further call is needed to deliver them.
    """
    process_watchdog().settle_later(
        transport, lambda finally_: finally_ or transport.deliver_deferred()
    )


class UnawaitedRelease:
    """
    A release that no caller waits for: its votes count when they are read, and are reported once.

    Later calls on the same connections read the votes, or else the watchdog does. A node that was
    not connected gets the release when the process connects to it, and its vote counts as well.

    Attributes:
        transport: to the nodes.
        channel: the channel on which it was sent.
        round: counts the votes.
    """

    __slots__ = (
        "_give_up_at",
        "_lock",
        "_node_timeout",
        "_on_settled",
        "channel",
        "round",
        "transport",
    )

    def __init__(
        self,
        transport: Transport,
        channel: Channel,
        node_timeout: float,
        on_settled: Callable[[Phase], object],
    ) -> None:
        self.transport = transport
        self.channel = channel
        self.round = ReleaseRound(len(transport.names))
        self._node_timeout = node_timeout
        self._give_up_at = math.inf
        self._on_settled = on_settled
        self._lock = native_lock()

    def record_vote(self, node: int, vote: Vote | None, now: float) -> None:
        """Count a node's reply."""
        if vote is not None:
            with self._lock:  # replies may come on several channels
                self.round.vote(node, vote, now)

    def settle(self, finally_: bool = False) -> bool:
        """
        Report how the release ended, if that is known or no longer waited for.

        Args:
            finally_: report it in any case.

        Returns:
            Whether it was reported.
        """
        if self.round.phase is Phase.VOTING:
            self.transport.drain(self.channel)
        now = self.transport.now()
        # From the first look on, not from the sending, during which this process may have paused.
        self._give_up_at = min(self._give_up_at, now + self._node_timeout)
        if self.round.phase is Phase.VOTING and now < self._give_up_at and not finally_:
            return False
        self._on_settled(self.round.phase)
        return True


def send_release(
    transport: Transport, commands: Sequence[Command], node_timeout: float
) -> tuple[list[Phase], Channel]:
    """
    Send releases to all nodes, and wait for a quorum.

    Args:
        transport: to the nodes.
        commands: the releases.
        node_timeout: seconds in which a node has to answer.

    Returns:
        The phase of each release's round, and the channel that was used.
    """
    batch = [(command, ReleaseRound(len(transport.names))) for command in commands]
    with _sending(transport, commands, node_timeout) as channel:
        channel.exchange(batch, node_timeout)
    return [round_.phase for _, round_ in batch], channel


def send_unawaited(
    transport: Transport,
    command: Command,
    node_timeout: float,
    on_settled: Callable[[Phase], object],
) -> UnawaitedRelease:
    """
    Send a release to all nodes without waiting for their replies.

    Args:
        transport: to the nodes.
        command: the release.
        node_timeout: seconds in which a node has to answer.
        on_settled: called once by `settle`, with the phase of the release's round.
    """
    with _sending(transport, [command], node_timeout) as channel:
        sent = UnawaitedRelease(transport, channel, node_timeout, on_settled)
        channel.send(command, receiver=sent.record_vote)
    return sent


def release_to(
    transport: Transport, command: Command, reservation: Reservation, node_timeout: float
) -> tuple[Phase, Channel]:
    """
    Send a release that leaves keys to a reservation for a short time, then extend them.

    They are extended on the nodes that acknowledged the release, and only if the reservation is
    unused.

    Returns:
        The phase of the release's round, and the channel that was used.
    """
    round_, check = ReleaseRound(len(transport.names)), ReleaseRound(len(transport.names))
    batch, acked = [(command, round_)], AckedNodes()
    with _sending(transport, [command], node_timeout) as channel:
        channel.exchange(batch, node_timeout, linger=min(node_timeout, _LINGER), acked=acked)
        left = reservation.left_ms(transport.wall_us())
        if round_.phase is not Phase.GRANTED or left <= 0:
            return round_.phase, channel
        # The message may have been sent, and its receiver may have taken the reservation over on a
        # quorum and released it while one of these nodes still had our keys. That has not happened
        # if a quorum has the reservation now, when all of these nodes have it: a later receiver
        # finds it on them, or releases it there.
        nodes = sorted(acked)
        probe = extend(reservation.keys, reservation.owner, 1, 0)
        channel.exchange([(probe, check)], node_timeout)
        if check.phase is Phase.GRANTED:
            channel.send(extend(reservation.keys, reservation.owner, left, 0), nodes)
    return round_.phase, channel


@contextmanager
def _sending(
    transport: Transport, commands: Sequence[Command], node_timeout: float
) -> Iterator[Channel]:
    """Borrow a channel to send releases; an exception still sends them to every node."""
    with borrowed(transport) as channel:
        try:
            channel.connect(math.inf if node_timeout else 0.0)
            yield channel
        except BaseException:
            # A time limit or Ctrl-C may have struck before every node was sent the release.
            for command in commands:
                channel.send(command)
            raise
