"""
Kinds of lock node: each brings a transport, and the ways to administer and to read one node.

A node's URL names its kind; `KINDS` in this package's `__init__` has one for each scheme.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from redis.exceptions import RedisError

from celery_redlock.protocol.commands import Command
from celery_redlock.protocol.votes import Failed, KeyStates, Vote
from celery_redlock.transport.addresses import NodeAddress
from celery_redlock.transport.base import Durations, Transport
from celery_redlock.transport.redis.connect_error import ConnectError

#: Keys that a node looks at in one step of a scan: some 15 microseconds.
SCANNED_AT_ONCE = 100

#: Keys that a node reads in one step: some 50 microseconds, little more than an acquire takes.
READ_AT_ONCE = 25

#: Errors of a node that does not answer as it should.
NODE_ERRORS = (ConnectError, RedisError, OSError)


class NodeKind(ABC):
    """
    A kind of lock node.

    Attributes:
        is_in_process: its nodes live in one process, and exclude nothing in another.
    """

    is_in_process = False

    @abstractmethod
    def open_transport(
        self,
        nodes: Sequence[NodeAddress],
        durations: Durations,
        on_deferred: Callable[[Any], object],
    ) -> Transport:
        """Return a transport for nodes of this kind; it connects when it is first used."""

    @abstractmethod
    def administration(self, node: NodeAddress) -> Administration:
        """Return one connection to a node, for arming it; it connects when it is first used."""

    @abstractmethod
    def reader(self, node: NodeAddress, timeout: float) -> NodeReader:
        """Connect to a node, with a timeout in seconds for each of its answers."""

    @abstractmethod
    def probe(self, node: NodeAddress, timeout: float) -> str | None:
        """
        Connect as a client does; return the server's run id, if it shows one.

        Raises:
            ConnectError: the node cannot serve.
        """


class Administration(ABC):
    """
    One node, on one connection from the check to the arming.

    A server that restarts in between breaks the connection, so the process that is armed is the one
    that was checked, not one that has lost its grants since. Every method may raise one of
    `NODE_ERRORS`.

    Attributes:
        run_id: the run id of the server that answered; None if it shows none.
    """

    run_id: str | None = None

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    @abstractmethod
    def run(self, mode: str) -> str:
        """
        Run the script `arm`, with `look`, `new` or `force`.

        Returns:
            A state, and the seconds that it lasts if they are known.
        """


class NodeReader(ABC):
    """
    A node whose keys are read; only `execute` may change one.

    Every method may raise one of `NODE_ERRORS`; the node is of no use then.
    """

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

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
