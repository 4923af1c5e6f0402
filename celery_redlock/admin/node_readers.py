"""
Reads from all nodes of a client at once; the answers of a quorum are enough.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from redis.exceptions import NoPermissionError

from celery_redlock.core import Client, Redlock, client_of
from celery_redlock.core.failures import describe_problems
from celery_redlock.errors import QuorumUnavailable
from celery_redlock.protocol.commands import Command
from celery_redlock.protocol.rounds import InspectRound
from celery_redlock.protocol.timing import quorum
from celery_redlock.protocol.votes import Failed, Vote
from celery_redlock.transport import NODE_ERRORS, NodeAddress, NodeSession, kind_of
from celery_redlock.transport.redis.connect_error import describe_failure

#: Seconds that a node has for each answer.
TIMEOUT = 2.0

T = TypeVar("T")


class Readers:
    """
    The nodes that answer, and why the others do not; a node that failed is not asked again.

    Attributes:
        names: all nodes.
        prefix: the prefix of the client's keys.
        quorum: the number of nodes in a quorum.
        reasons: why a node does not answer, by its name.
    """

    def __init__(self, redlock: Redlock | Client, timeout: float) -> None:
        client = client_of(redlock)
        self.names = client.node_names
        self.prefix = client.settings.key_prefix
        self.quorum = quorum(len(self.names))
        self.reasons: dict[str, str] = {}
        self._readers: dict[int, NodeSession] = {}
        self._pool = ThreadPoolExecutor(len(self.names))
        opened = [self._pool.submit(_opened, node, timeout) for node in client.addresses]
        with contextlib.ExitStack() as after_error:
            after_error.callback(self.close)
            for index, reader in enumerate(opened):
                with self._failing(index):
                    self._readers[index] = reader.result()
            self.check_quorum()
            after_error.pop_all()

    def close(self) -> None:
        """Close all connections."""
        self._pool.shutdown(wait=False)
        for index in tuple(self._readers):
            self._drop(index)

    def __iter__(self) -> Iterator[NodeSession]:
        return iter(tuple(self._readers.values()))

    @contextlib.contextmanager
    def _failing(self, index: int) -> Iterator[None]:
        """Note why a node does not answer, and do not ask it again."""
        try:
            yield
        except NODE_ERRORS as exc:
            self.reasons[self.names[index]] = describe_node_error(exc)
            self._drop(index)

    def _drop(self, index: int) -> None:
        if (reader := self._readers.pop(index, None)) is not None:
            reader.close()

    def check_quorum(self) -> None:
        """Raise `QuorumUnavailable` if too few nodes answer."""
        if len(self._readers) < self.quorum:
            raise QuorumUnavailable(
                f"The locks cannot be read: {self.quorum} of {len(self.names)} nodes have to "
                f"answer. {describe_problems(self.reasons)}.",
                None,
                self.reasons,
            )

    def each(self, ask: Callable[[NodeSession], T]) -> dict[int, T]:
        """Ask all nodes at once; return the answers that came, by the positions of the nodes."""
        asked = {index: self._pool.submit(ask, node) for index, node in self._readers.items()}
        answers = {}
        for index, answer in asked.items():
            with self._failing(index):
                answers[index] = answer.result()
        return answers

    def inspect(
        self, node_keys: tuple[str, ...]
    ) -> tuple[InspectRound, list[list[tuple[int, float]]]]:
        """
        Return the votes of all nodes on some keys, and for each key its wait queues with waiters.

        A wait queue is given as its length and its first score.
        """
        round_ = InspectRound(len(self.names))
        waiting: list[list[tuple[int, float]]] = [[] for _ in node_keys]
        for index, found in self.each(lambda node: node.states(node_keys)).items():
            round_.votes[index] = found[0]
            for queues, queue in zip(waiting, found[1], strict=True):
                queues += [queue] if queue[0] else []
        for index, name in enumerate(self.names):
            if name in self.reasons:
                round_.votes[index] = Failed(self.reasons[name])
        self.check_quorum()
        return round_, waiting

    def waiters(self, node_key: str) -> Iterable[Mapping[str, float]]:
        """Return the wait queue of a key on each node that answers."""
        return self.each(lambda node: node.waiters(node_key)).values()

    def execute(self, command: Command) -> dict[str, Vote]:
        """Execute a command on all nodes, and return the vote of each by its name."""
        votes = self.each(lambda node: node.execute(command))
        return {
            name: votes.get(index) or Failed(self.reasons[name])
            for index, name in enumerate(self.names)
        }


def _opened(node: NodeAddress, timeout: float) -> NodeSession:
    session = kind_of(node).session(node, timeout)
    session.open()
    return session


def describe_node_error(exc: Exception) -> str:
    """Return why a node's keys cannot be read, in one line."""
    reason = describe_failure(exc)
    if isinstance(exc, NoPermissionError) and any(name in reason for name in ("scan", "dbsize")):
        return f"{reason.rstrip('.')}; its user needs +scan and +dbsize to list locks"
    return reason
