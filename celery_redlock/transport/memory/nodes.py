"""
The kind of node that lives in one process; it is armed and read as the scripts do on a server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from celery_redlock.protocol.commands import Command, inspect
from celery_redlock.protocol.keys import lock_of
from celery_redlock.protocol.votes import Failed, KeyStates, Vote
from celery_redlock.protocol.wait_queue import WaitQueue
from celery_redlock.transport.addresses import NodeAddress
from celery_redlock.transport.base import SCANNED_AT_ONCE, NodeSession, checked_states
from celery_redlock.transport.memory.transport import memory_node


class MemorySession(NodeSession):
    """A node of this process."""

    def __init__(self, node: NodeAddress, timeout: float) -> None:
        self._node = memory_node(node)
        self._identity = self._node.state.identity

    def open(self) -> None:
        if self._node.refusing or self._node.paused:
            raise ConnectionError("no answer")

    def close(self) -> None:
        pass

    def arm(self, mode: str) -> str:
        self.open()
        node, state = self._node, self._node.state
        if node.garbage or state.identity != self._identity:
            raise ConnectionError("no answer")
        record = state.guard
        if record is not None and mode != "force":
            if not state.identity.has_lost_nothing_since(record):
                return "other"
            remaining = record.not_before - node.now_us()
            return f"quarantined {-(-remaining // 1_000_000)}" if remaining > 0 else "serving"
        if mode == "look":
            return "missing"
        state.arm()
        return "armed"

    def size(self) -> int:
        self.open()
        return len(self._node.state.keys)

    def scan(self, match: str) -> Iterator[Sequence[bytes]]:
        names = [name.encode() for name in list(self._node.state.keys)]
        for first in range(0, len(names), SCANNED_AT_ONCE):
            self.open()
            yield names[first : first + SCANNED_AT_ONCE]

    def states(self, node_keys: tuple[str, ...]) -> tuple[KeyStates, Sequence[tuple[int, float]]]:
        self.open()
        states = checked_states(self._node.execute(inspect(node_keys)))
        queues = [self._queue(node_key).scores.values() for node_key in node_keys]
        return states, [(len(scores), min(scores, default=0.0)) for scores in queues]

    def waiters(self, node_key: str) -> dict[str, float]:
        self.open()
        return dict(self._queue(node_key).scores)

    def execute(self, command: Command) -> Vote:
        self.open()
        return self._node.execute(command) or Failed("no answer")

    def _queue(self, node_key: str) -> WaitQueue:
        queue = self._node.state.waiting.get(lock_of(node_key), WaitQueue())
        return queue if self._node.now_us() // 1000 <= queue.expires_at else WaitQueue()
