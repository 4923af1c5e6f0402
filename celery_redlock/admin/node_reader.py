"""
One node's keys, read in small steps, so that its other clients hardly notice, and released.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from redis.exceptions import NoPermissionError, RedisError

from celery_redlock.protocol import Command, Failed, KeyStates, Script, Vote, inspect
from celery_redlock.protocol.commands import NOT_TEXT, read_reply
from celery_redlock.protocol.keys import lock_of, wait_queue_key
from celery_redlock.protocol.node_model import WaitQueue
from celery_redlock.protocol.scripts import SOURCE
from celery_redlock.transport import NodeAddress
from celery_redlock.transport.memory import MemoryNode, memory_node
from celery_redlock.transport.redis.connect_error import ConnectError, describe_failure
from celery_redlock.transport.redis.connector import Connector

#: Keys that a node looks at in one step of a scan: some 15 microseconds.
SCANNED_AT_ONCE = 100

#: Keys that a node reads in one step: some 50 microseconds, little more than an acquire takes.
READ_AT_ONCE = 25

#: Errors of a reader whose node does not answer as a node does.
NODE_ERRORS = (ConnectError, RedisError, OSError)

#: KEYS are wait queues. Returns the length of each.
_LENGTHS = """
local found = {}
for i, queue in ipairs(KEYS) do
  local length = redis.pcall('ZCARD', queue)
  found[i] = type(length) == 'number' and length or 0
end
return found
"""

#: KEYS[1] is a wait queue. In a script, because replies of scripts have one form in all protocols.
_WAITERS = """
local found = redis.pcall('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
return found.err and {} or found
"""


def describe_node_error(exc: Exception) -> str:
    """Return why a node's keys cannot be read, in one line."""
    reason = describe_failure(exc)
    if isinstance(exc, NoPermissionError) and any(name in reason for name in ("scan", "dbsize")):
        return f"{reason.rstrip('.')}; its user needs +scan and +dbsize to list locks"
    return reason


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
            match: glob of Redis; the names may be more than it matches.
        """

    @abstractmethod
    def states(self, node_keys: tuple[str, ...]) -> tuple[KeyStates, Sequence[int]]:
        """Return the state of each key, and the length of its wait queue."""

    @abstractmethod
    def waiters(self, node_key: str) -> dict[str, float]:
        """Return those who wait for a key, with their scores in its wait queue."""

    @abstractmethod
    def execute(self, command: Command) -> Vote:
        """Execute a command, such as a release, and return the node's vote."""


def open_reader(node: NodeAddress, timeout: float) -> NodeReader:
    """Connect to a node, with a timeout in seconds for each of its answers."""
    if node.name.startswith("memory://"):
        return _MemoryReader(memory_node(node))
    return _ServerReader(node, timeout)


class _ServerReader(NodeReader):
    """A server, on a connection of its own: the client's locks do not queue behind a list."""

    def __init__(self, node: NodeAddress, timeout: float) -> None:
        self._connection, _ = Connector(node, timeout).open()

    def close(self) -> None:
        self._connection.disconnect()

    def size(self) -> int:
        return int(self._run("DBSIZE"))

    def scan(self, match: str) -> Iterator[Sequence[bytes]]:
        cursor = b"0"
        while True:
            cursor, names = self._run("SCAN", cursor, "MATCH", match, "COUNT", SCANNED_AT_ONCE)
            yield names
            if cursor == b"0":
                return

    def states(self, node_keys: tuple[str, ...]) -> tuple[KeyStates, Sequence[int]]:
        keys = inspect(node_keys).keys
        queues = [wait_queue_key(node_key) for node_key in node_keys]
        commands = [
            ("EVAL", SOURCE[Script.INSPECT], len(keys), *keys, "list"),
            ("EVAL", _LENGTHS, len(queues), *queues),
        ]
        self._connection.send_packed_command(self._connection.pack_commands(commands))
        states, lengths = self._reply(), self._reply()
        return _checked(read_reply(states[1:])), lengths

    def waiters(self, node_key: str) -> dict[str, float]:
        found = self._run("EVAL", _WAITERS, 1, wait_queue_key(node_key))
        return {
            name.decode(errors="replace"): float(score)
            for name, score in zip(found[0::2], found[1::2], strict=True)
        }

    def execute(self, command: Command) -> Vote:
        words = (len(command.keys), *command.keys, "release", *command.args)
        source = SOURCE[command.script]
        reply = self._run("EVAL", source, *(str(word).encode(errors=NOT_TEXT) for word in words))
        return read_reply(reply[1:])

    def _run(self, *command: str | bytes | int) -> Any:
        self._connection.send_command(*command)
        return self._reply()

    def _reply(self) -> Any:
        return self._connection.read_response(disable_decoding=True)


class _MemoryReader(NodeReader):
    """A node of this process."""

    def __init__(self, node: MemoryNode) -> None:
        self._node = node
        self._check()

    def close(self) -> None:
        pass

    def size(self) -> int:
        self._check()
        return len(self._node.state.keys)

    def scan(self, match: str) -> Iterator[Sequence[bytes]]:
        names = [name.encode() for name in list(self._node.state.keys)]
        for first in range(0, len(names), SCANNED_AT_ONCE):
            self._check()
            yield names[first : first + SCANNED_AT_ONCE]

    def states(self, node_keys: tuple[str, ...]) -> tuple[KeyStates, Sequence[int]]:
        self._check()
        states = _checked(self._node.execute(inspect(node_keys)))
        return states, [len(self._queue(node_key).scores) for node_key in node_keys]

    def waiters(self, node_key: str) -> dict[str, float]:
        self._check()
        return dict(self._queue(node_key).scores)

    def execute(self, command: Command) -> Vote:
        self._check()
        return self._node.execute(command) or Failed("no answer")

    def _queue(self, node_key: str) -> WaitQueue:
        queue = self._node.state.waiting.get(lock_of(node_key), WaitQueue())
        return queue if self._node.now_us() // 1000 <= queue.expires_at else WaitQueue()

    def _check(self) -> None:
        if self._node.refusing or self._node.paused:
            raise ConnectionError("no answer")


def _checked(vote: object) -> KeyStates:
    if isinstance(vote, KeyStates):
        return vote
    reason = vote.reason if isinstance(vote, Failed) else "no answer"
    raise ConnectError(reason, lasting=False)
