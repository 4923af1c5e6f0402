"""
The nodes of a client, asked all at once; those that answer are enough if they are a quorum.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar

from celery_redlock.admin.node_reader import (
    NODE_ERRORS,
    NodeReader,
    describe_node_error,
    open_reader,
)
from celery_redlock.core import Redlock
from celery_redlock.core.failures import describe_problems
from celery_redlock.errors import QuorumUnavailable
from celery_redlock.protocol import Command, Failed, InspectRound, Vote, quorum

__all__ = ["TIMEOUT", "Readers"]

#: Seconds that a node has for each answer.
TIMEOUT = 2.0

T = TypeVar("T")


class Readers:
    """
    The nodes that answer, and the reasons of those that do not, which are asked no more.

    Attributes:
        names: all nodes.
        prefix: of the client's keys.
        quorum: how many nodes it takes.
        reasons: why a node does not answer, by its name.
    """

    def __init__(self, redlock: Redlock, timeout: float) -> None:
        self.names = redlock.node_names
        self.prefix = redlock.settings.key_prefix
        self.quorum = quorum(len(self.names))
        self.reasons: dict[str, str] = {}
        self._readers: dict[int, NodeReader] = {}
        self._pool = ThreadPoolExecutor(len(self.names))
        opened = [self._pool.submit(open_reader, node, timeout) for node in redlock.addresses]
        with contextlib.ExitStack() as after_error:
            after_error.callback(self.close)
            for index, reader in enumerate(opened):
                with self.failing(index):
                    self._readers[index] = reader.result()
            self.check_quorum()
            after_error.pop_all()

    def close(self) -> None:
        """Close all connections."""
        self._pool.shutdown(wait=False)
        for index in tuple(self._readers):
            self._drop(index)

    def __iter__(self) -> Iterator[int]:
        return iter(tuple(self._readers))

    def __getitem__(self, index: int) -> NodeReader:
        return self._readers[index]

    @contextlib.contextmanager
    def failing(self, index: int) -> Iterator[Self]:
        """Note why a node does not answer, and ask it no more."""
        try:
            yield self
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
                f"The locks are not known: it takes {self.quorum} of {len(self.names)} nodes. "
                f"{describe_problems(self.reasons)}.",
                None,
                self.reasons,
            )

    def each(self, ask: Callable[[int], T]) -> dict[int, T]:
        """Ask all nodes at once, by their positions; return the answers of those that give one."""
        asked = {index: self._pool.submit(ask, index) for index in self}
        answers = {}
        for index, answer in asked.items():
            with self.failing(index):
                answers[index] = answer.result()
        return answers

    def inspect(self, node_keys: tuple[str, ...]) -> tuple[InspectRound, list[int]]:
        """Return the votes of all nodes on some keys, and for each key how many wait for it."""
        round_ = InspectRound(len(self.names))
        waiting = [0] * len(node_keys)
        for index, found in self.each(lambda at: self[at].states(node_keys)).items():
            round_.votes[index] = found[0]
            waiting = list(map(max, waiting, found[1]))
        for index, name in enumerate(self.names):
            if name in self.reasons:
                round_.votes[index] = Failed(self.reasons[name])
        self.check_quorum()
        return round_, waiting

    def waiters(self, node_key: str) -> Iterable[Mapping[str, float]]:
        """Return the wait queue of a key on each node that answers."""
        return self.each(lambda at: self[at].waiters(node_key)).values()

    def execute(self, command: Command) -> dict[str, Vote]:
        """Execute a command on all nodes, and return the vote of each by its name."""
        votes = self.each(lambda at: self[at].execute(command))
        return {
            name: votes.get(index) or Failed(self.reasons[name])
            for index, name in enumerate(self.names)
        }
