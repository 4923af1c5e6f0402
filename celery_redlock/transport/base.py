"""
The interface between the lock and its nodes.

A transport knows N nodes. A channel connects one caller at a time with all of them; each node
executes the commands of a channel in the order in which they were sent.

Exchanges block, also below an event loop (decision 0018).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from redis.exceptions import RedisError

from celery_redlock.protocol.commands import Command, Script
from celery_redlock.protocol.rounds import Round
from celery_redlock.protocol.votes import Acknowledged, Failed, Granted, KeyStates, NotHeld, Vote
from celery_redlock.transport.addresses import NodeAddress
from celery_redlock.transport.listeners import WaitingCall, WakeUps
from celery_redlock.transport.redis.connect_error import ConnectError

#: Errors of a node that does not answer as it should.
NODE_ERRORS = (ConnectError, RedisError, OSError)

#: Keys that a node looks at in one step of a scan: some 15 microseconds.
SCANNED_AT_ONCE = 100

#: Keys that a node reads in one step: some 50 microseconds, little more than an acquire takes.
READ_AT_ONCE = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """
    Seconds that a client and its connections count with.

    Attributes:
        node_timeout: in which a node has to answer, also in each step of connecting.
        max_ttl: of the longest lease.
        takeover: after a promotion, in which a former master's votes may count.
    """

    node_timeout: float
    max_ttl: float
    takeover: float


#: Counts a node's reply to a command, also one that comes after its exchange. Takes the position of
#: the node, its vote, or None if there was none, and a reading of the transport's clock; returns
#: the command that the reply calls for, if any.
VoteReceiver: TypeAlias = Callable[[int, Vote | None, float], Command | None]


class AckedNodes(set[int]):
    """
    Indexes of the nodes known to have executed a command; late replies add to it.

    Attributes:
        not_held: those of them that may not hold the command's keys.
        max_counter: the largest counter with which a grant still counts; None: any.
        undo: the command for a node with a larger counter.
        followup: the command for a node that is added before the deadline, if any.
        followup_deadline: on the transport's clock.
    """

    __slots__ = ("followup", "followup_deadline", "max_counter", "not_held", "undo")

    def __init__(self, nodes: Iterable[int] = ()) -> None:
        super().__init__(nodes)
        self.not_held: set[int] = set()
        self.max_counter: int | None = None
        self.undo: Command | None = None
        self.followup: Command | None = None
        self.followup_deadline = 0.0

    def record_vote(self, node: int, vote: Vote | None, now: float) -> Command | None:
        """Add the node if it has executed the command; see `VoteReceiver`."""
        if not isinstance(vote, Granted | Acknowledged | NotHeld):
            return None
        if isinstance(vote, NotHeld):
            self.not_held.add(node)
        if (
            self.max_counter is not None
            and isinstance(vote, Granted)
            and vote.high > self.max_counter
        ):
            return self.undo
        self.add(node)
        return self.followup if now < self.followup_deadline else None


#: Commands that are sent together, each with the round that counts its votes.
Batch = Sequence[tuple[Command, Round]]


class Channel(Protocol):
    """One caller's connections to all nodes."""

    def connect(self, limit: float = math.inf) -> None:
        """Wait until a quorum of nodes is connected, within bounds and at most `limit` seconds."""

    def exchange(
        self,
        batch: Batch,
        timeout: float,
        *,
        limit: float = math.inf,
        linger: float = 0.0,
        acked: AckedNodes | None = None,
    ) -> None:
        """
        Send each command to every node and feed the replies into its round.

        Returns as soon as every round has left its phase, at the latest when nodes have had
        `timeout` seconds; those that have not replied by then have voted `Failed`.

        Args:
            batch: the commands.
            timeout: seconds in which the nodes have to reply, once all commands are sent: this
                process may pause before.
            limit: seconds from the call after which it waits no longer, although nodes may have
                had less than `timeout`.
            linger: seconds to wait longer for nodes whose vote was not needed.
            acked: collects the nodes that have executed the commands, also by late replies.
        """

    def drain(self) -> None:
        """Take the connections that were made and the replies that have come; wait for none."""

    def send(
        self,
        command: Command,
        nodes: Sequence[int] | None = None,
        *,
        receiver: VoteReceiver | None = None,
    ) -> None:
        """
        Send a command to all nodes (or to those given) without waiting for replies.

        Each node executes it after all earlier commands of this channel, also a node that is silent
        now. A release is deferred for nodes that are not connected; other commands skip them. The
        receiver gets each reply when a later call reads it, and none from a node whose connection
        breaks before. A deferred release may be sent on another channel; the receiver is then
        called in the thread that reads that one.
        """

    def nodes_in_doubt(self) -> frozenset[int]:
        """Return the nodes where a command of this channel may yet set a key."""


class Transport(Protocol):
    """N nodes and the channels to them."""

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes' display names, without passwords."""

    def refusals(self, script: Script) -> Mapping[str, str]:
        """Return the nodes that answered a script with an error the last time, and the error."""

    def failures(self) -> Mapping[str, ConnectError | None]:
        """Return why nodes failed when they were last used; None if one is not connected yet."""

    def now(self) -> float:
        """Read the clock that bounds validity, in seconds. It counts while the machine sleeps."""

    def wall_us(self) -> int:
        """Read the wall clock, in microseconds."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""

    def wait(self, call: WaitingCall, seconds: float) -> bool:
        """Let this time pass, or less if a call is woken; return whether it was."""

    @property
    def wake_ups(self) -> WakeUps:
        """The wake-ups that the nodes publish."""

    def checkout(self) -> Channel:
        """Borrow a channel for this thread; it ends with `checkin` or `discard`."""

    def checkin(self, channel: Channel) -> None:
        """Give a channel back; replies may still be outstanding."""

    def discard(self, channel: Channel) -> None:
        """Close a channel whose state is not known."""

    def drain(self, channel: Channel) -> None:
        """Take the replies that have come on a channel; a borrowed one is left to its borrower."""

    def send_behind(self, channel: Channel, command: Command, nodes: Sequence[int]) -> None:
        """Send a command behind those sent on `channel`, whichever call has borrowed it now."""

    def send_after_ack(self, channel: Channel, command: Command, acked: AckedNodes) -> None:
        """
        Send a command to the nodes in `acked`, behind what was sent on `channel`.

        Late replies on the channel are read first and may add to `acked`; a node that is added
        within a second is sent the command as well.
        """

    def close(self) -> None:
        """
        Close all connections, after a wait for the replies that receivers shall get. Idempotent.

        The wait takes at most the time in which a node has to answer.
        """


class borrowed:  # noqa: N801 - reads as the verb of a `with` statement
    """
    Borrow a channel for a `with` block.

    A block that raises leaves the channel in an unknown state: the channel is closed, and
    unanswered releases are deferred to the next connections. A class, because a generator would
    cost each acquire and release some microseconds more.
    """

    __slots__ = ("_channel", "_transport")

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __enter__(self) -> Channel:
        self._channel = self._transport.checkout()
        return self._channel

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self._transport.checkin(self._channel)
        else:
            self._transport.discard(self._channel)


class NodeSession(ABC):
    """
    One node, on a connection of its own: to arm it, and to read its keys.

    A server that restarts breaks the connection, so the process that is armed is the one that was
    checked, not one that has lost its grants since. Only `arm` and `execute` may change a node.
    Every method may raise one of `NODE_ERRORS`; as a reader, the node is of no use then.

    Attributes:
        run_id: the run id of the server that answered; None if it shows none.
    """

    run_id: str | None = None

    @abstractmethod
    def open(self) -> None:
        """Connect, unless that is done. `arm` does it by itself; the other methods need it."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    @abstractmethod
    def arm(self, mode: str) -> str:
        """
        Run the script `arm`, with `look`, `new` or `force`.

        Returns:
            A state, and the seconds that it lasts if they are known.
        """

    @abstractmethod
    def size(self) -> int:
        """Return how many keys the node has, of any kind."""

    @abstractmethod
    def scan(self, match: str) -> Iterator[Sequence[bytes]]:
        """
        Yield the names of keys, step by step; a step may have none.

        A key that exists from the first step to the last one is among them, perhaps twice.

        Args:
            match: a Redis glob; a node may also yield names that do not match it.
        """

    @abstractmethod
    def states(self, node_keys: tuple[str, ...]) -> tuple[KeyStates, Sequence[tuple[int, float]]]:
        """Return the state of each key, and of its wait queue the length and the first score."""

    @abstractmethod
    def waiters(self, node_key: str) -> dict[str, float]:
        """Return the waiters of a key, with their scores in its wait queue."""

    @abstractmethod
    def execute(self, command: Command) -> Vote:
        """Execute a command, such as a release, and return the node's vote."""


def checked_states(vote: Vote | None) -> KeyStates:
    """Return the states of keys that a node replied with, or raise `ConnectError`."""
    if isinstance(vote, KeyStates):
        return vote
    reason = vote.reason if isinstance(vote, Failed) else "no answer"
    raise ConnectError(reason, lasting=False)


class NodeKind(NamedTuple):
    """
    A kind of lock node, see `kind_of` in this package's `__init__`.

    Attributes:
        open_transport: returns a transport for nodes of this kind; takes what `RedisTransport`
            takes.
        session: returns a session with a node, given a timeout in seconds for each of its answers.
        probe: connects as a client does, with such a timeout; returns the server's run id, if it
            shows one. Raises `ConnectError` if the node cannot serve.
        is_in_process: its nodes live in one process, and exclude nothing in another.
    """

    open_transport: Callable[[Sequence[NodeAddress], Durations, Callable[[Any], object]], Transport]
    session: Callable[[NodeAddress, float], NodeSession]
    probe: Callable[[NodeAddress, float], str | None]
    is_in_process: bool = False
