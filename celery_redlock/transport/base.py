"""
What the lock needs of a transport, on one screen.

A transport knows N nodes. A channel is one conversation with all of them, used by one caller at a
time; commands on a channel reach each node in the order in which they were said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from celery_redlock.protocol import (
    Command,
    Failed,
    Granted,
    Quarantined,
    Refused,
    Round,
    Script,
    Vote,
)


class AckedNodes(set[int]):
    """
    The nodes that have executed a command, as far as they have answered; late answers add to it.

    Attributes:
        max_counter: the largest counter with which a grant still counts; None: any.
        undo: what a node gets that has granted with a larger one.
        followup: what a node gets that turns out to be done, if anything.
        followup_deadline: until when, on the transport's clock.
    """

    __slots__ = ("followup", "followup_deadline", "max_counter", "undo")

    def __init__(self, nodes: Iterable[int] = ()) -> None:
        super().__init__(nodes)
        self.max_counter: int | None = None
        self.undo: Command | None = None
        self.followup: Command | None = None
        self.followup_deadline = 0.0

    def record_vote(self, node: int, vote: Vote | None, now: float) -> Command | None:
        """
        Take a node's answer, and return what the node gets because of it, if anything.

        Args:
            node: position of the node.
            vote: its answer; None if there was none.
            now: reading of the transport's clock.
        """
        if vote is None or isinstance(vote, Refused | Quarantined | Failed):
            return None
        if (
            self.max_counter is not None
            and isinstance(vote, Granted)
            and vote.high > self.max_counter
        ):
            return self.undo
        self.add(node)
        return self.followup if now < self.followup_deadline else None


class Channel(Protocol):
    """One conversation with all nodes."""

    def connect(self, limit: float = math.inf) -> None:
        """
        Wait until a quorum of nodes can be spoken to, within bounds, and for `limit` s at most.
        """

    def exchange(
        self,
        batch: Sequence[tuple[Command, Round]],
        timeout: float,
        *,
        linger: float = 0.0,
        acked: AckedNodes | None = None,
    ) -> None:
        """
        Say each command to every node and feed the answers into its round.

        Returns as soon as every round has left the phase that it was in, at the latest after
        `timeout` seconds; nodes that gave no answer by then have voted `Failed`. With `linger`,
        waits so much longer for the nodes whose vote was not needed. To `done` every node is
        added that has not refused, also when its answer comes later than it counts.
        """

    def drain(self) -> None:
        """Take the answers that have come, without waiting for any."""

    def send(self, command: Command, nodes: Sequence[int] | None = None) -> None:
        """
        Say a command to all nodes (or to those given) without waiting for an answer.

        It is queued behind what was said before, also to a node that does not answer now; where
        there is no connection it is said when there is one, unless its effect would have ended.
        """

    def nodes_in_doubt(self) -> frozenset[int]:
        """Return the nodes where a key may yet be set by something said on this channel."""


class Transport(Protocol):
    """N nodes and the channels to them."""

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes' display names, without passwords."""

    def refusals(self, script: Script) -> Mapping[str, str]:
        """Return the nodes that refused a script when they were last asked for it, and why."""

    def now(self) -> float:
        """Read the clock that bounds trust, in seconds. It counts while the machine sleeps."""

    def wall_us(self) -> int:
        """Read the wall clock, in microseconds."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""

    def checkout(self) -> Channel:
        """Borrow a channel for this thread; it ends with `checkin` or `discard`."""

    def checkin(self, channel: Channel) -> None:
        """Give a channel back, with whatever it still owes."""

    def discard(self, channel: Channel) -> None:
        """Give back a channel whose state is not known; it is closed."""

    def send_behind(self, channel: Channel, command: Command, nodes: Sequence[int]) -> None:
        """Say a command to nodes behind what was said on `channel`, whoever uses it now."""

    def send_after_ack(self, channel: Channel, command: Command, acked: AckedNodes) -> None:
        """
        Say a command to the nodes in `done`, behind what was said on `channel`.

        Late answers on the channel are read before and may add to `done`; a node that is added
        within a second gets the command as well.
        """

    def close(self) -> None:
        """Close all connections. Idempotent."""


@contextmanager
def borrowed(transport: Transport) -> Iterator[Channel]:
    """
    Borrow a channel for a `with` block.

    A block that raises leaves the channel in an unknown state, so the channel is closed; what was
    deferred for its nodes is sent on another one.
    """
    channel = transport.checkout()
    try:
        yield channel
    except BaseException:
        transport.discard(channel)
        raise
    transport.checkin(channel)
