"""
In-memory nodes: they act as the scripts do on servers, with a virtual clock and faults on demand.

They keep and lose data as servers do, so that tests and simulations can send the same commands to
both. They live in one process: their locks exclude nothing in another process.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Iterator, Sequence

from celery_redlock._greenlets.unpatched import native_lock
from celery_redlock.protocol.commands import Command, Script, inspect
from celery_redlock.protocol.keys import lock_of, wake_channel
from celery_redlock.protocol.node_model import Identity, ModelNode
from celery_redlock.protocol.rounds import Phase, Round
from celery_redlock.protocol.votes import Failed, KeyStates, Vote
from celery_redlock.protocol.wait_queue import WaitQueue
from celery_redlock.transport import clock
from celery_redlock.transport.addresses import NodeAddress
from celery_redlock.transport.base import (
    SCANNED_AT_ONCE,
    AckedNodes,
    Batch,
    Channel,
    NodeSession,
    VoteReceiver,
    checked_states,
)
from celery_redlock.transport.listeners import Listener, Listeners, WaitingCall
from celery_redlock.transport.redis.connect_error import ConnectError

_ids = itertools.count(1)


class Time:
    """The machine's time."""

    def now(self) -> float:
        """Return seconds of the clock that bounds validity."""
        return clock.now()

    def wall_us(self) -> int:
        """Return microseconds of wall time."""
        return clock.wall_us()

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)


class VirtualTime(Time):
    """Time that passes only in `sleep`."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def wall_us(self) -> int:
        return round(self._now * 1_000_000)

    def sleep(self, seconds: float) -> None:
        self._now += seconds


class MemoryNode:
    """
    One in-memory node.

    Attributes:
        name: display name.
        state: its data.
        skew: seconds by which its wall clock is ahead.
        refusing: refuses connections while set.
        garbage: replies nonsense while set.
        paused: buffers commands and executes them when resumed, as a stopped process does.
        listeners: to the wake-ups that it publishes.
    """

    def __init__(self, name: str, clock: Time | None = None) -> None:
        self.name = name
        self.time = clock or Time()
        self.state = ModelNode(_identity())
        self.state.arm()
        self.skew = 0.0
        self.refusing = False
        self.garbage = False
        self.paused = False
        self._backlog: list[Command] = []
        self._lock = native_lock()
        self.listeners = Listeners()

    def now_us(self) -> int:
        """Read the node's wall clock."""
        return self.time.wall_us() + round(self.skew * 1_000_000)

    def pause(self) -> None:
        """Stop replying; commands received meanwhile are executed by `resume`."""
        self.paused = True

    def resume(self) -> None:
        """Execute the commands received meanwhile, and reply again."""
        with self._lock:
            self.paused = False
            backlog, self._backlog = self._backlog, []
            for command in backlog:
                self.state.run(command, self.now_us())
        self._publish()

    def kill(self) -> None:
        """End the process; commands that it has not executed are lost."""
        self.refusing = True
        self.paused = False
        self._backlog.clear()

    def restart(self, *, keep_data: bool = False) -> None:
        """Start another process, empty or with all of the data."""
        if not keep_data:
            self.state.lose_data()
        self.state.identity = _identity()
        self.refusing = False

    def reset(self) -> None:
        """Become a new node, with no data and no fault."""
        self.kill()
        self.restart()
        self.garbage, self.skew = False, 0.0
        self.state.arm()

    def execute(self, command: Command) -> Vote | None:
        """Execute a command and return its vote, or None for no reply."""
        if self.refusing:
            return Failed("connection refused")
        # A server executes one command at a time.
        with self._lock:
            if self.paused:
                self._backlog.append(command)
                return None
            vote = self.state.run(command, self.now_us())
        self._publish()
        return Failed("answered garbage") if self.garbage else vote

    def _publish(self) -> None:
        while self.state.published:
            key, name = self.state.published.pop(0)
            channel = wake_channel(key)
            for listener in self.listeners.of(channel):
                listener.on_wake(name, channel)


def _identity() -> Identity:
    return Identity(_new_id(), _new_id())


def _new_id() -> str:
    return f"memory-{next(_ids)}"


#: The nodes that `memory://` URLs name: all clients of a process that name the same nodes share
#: their locks.
_nodes: dict[str, MemoryNode] = {}


def memory_node(address: NodeAddress) -> MemoryNode:
    """Return this process's node of that name."""
    return _nodes.setdefault(address.name, MemoryNode(address.name))


def reset_memory_nodes() -> None:
    """Reset every node of this process that a `memory://` URL names."""
    for node in list(_nodes.values()):
        node.reset()


class MemoryTransport:
    """N in-memory nodes; also the channel to them, because no reply can be late."""

    def __init__(self, nodes: Sequence[MemoryNode]) -> None:
        self.nodes = list(nodes)
        self.names = tuple(node.name for node in self.nodes)
        self._time = self.nodes[0].time
        self._listeners: set[Listener] = set()

    def refusals(self, script: Script) -> dict[str, str]:
        """Return no node: these refuse no script."""
        return {}

    def failures(self) -> dict[str, ConnectError | None]:
        """Return no node: these need no connections."""
        return {}

    def now(self) -> float:
        """Read the clock that bounds validity."""
        return self._time.now()

    def wall_us(self) -> int:
        """Read the wall clock."""
        return self._time.wall_us()

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self._time.sleep(seconds)

    def wait(self, call: WaitingCall, seconds: float) -> bool:
        """Let this time pass, or less if a call is woken; return whether it was."""
        if isinstance(self._time, VirtualTime):
            self.sleep(seconds)
            return False
        return call.sleep(seconds)

    @property
    def wake_ups(self) -> MemoryTransport:
        """Return itself."""
        return self

    def add(self, listener: Listener, channels: Iterable[str]) -> None:
        """Begin to call a listener for some channels. Idempotent."""
        self._listeners.add(listener)
        for node in self.nodes:
            node.listeners.add(listener, channels)

    def remove(self, listener: Listener, channels: Iterable[str]) -> None:
        """Stop calling a listener for some channels. Idempotent."""
        self._listeners.discard(listener)
        for node in self.nodes:
            node.listeners.remove(listener, channels)

    def are_live(self, channels: frozenset[str]) -> bool:
        """Return True: nodes call their listeners at once."""
        return True

    def checkout(self) -> MemoryTransport:
        """Return itself: commands execute at once, so any number of callers can share it."""
        return self

    def checkin(self, channel: Channel) -> None:
        """Do nothing."""

    def discard(self, channel: Channel) -> None:
        """Do nothing."""

    def nodes_in_doubt(self) -> frozenset[int]:
        """Return no node: each command has been executed, or a paused node has it in order."""
        return frozenset()

    def drain(self, channel: Channel | None = None) -> None:
        """Do nothing: no reply is late."""

    def send_behind(self, channel: Channel, command: Command, nodes: Sequence[int]) -> None:
        """Send a command: a node executes all in order, whatever their channel."""
        self.send(command, nodes)

    def send_after_ack(self, channel: Channel, command: Command, acked: AckedNodes) -> None:
        """Send a command to the nodes in `acked`."""
        self.send(command, sorted(acked))

    def close(self) -> None:
        """Wake the listeners, which then find the client closed."""
        for listener in tuple(self._listeners):
            listener.on_close()
            listener.on_live()

    def connect(self, limit: float = math.inf) -> None:
        """Do nothing."""

    def exchange(
        self,
        batch: Batch,
        timeout: float,
        *,
        limit: float = math.inf,
        linger: float = 0.0,
        acked: AckedNodes | None = None,
    ) -> None:
        """Send each command to every node and feed the replies into its round."""
        undecided: list[tuple[Round, int]] = []
        for command, round_ in batch:
            before = round_.phase
            silent = []
            for index, node in enumerate(self.nodes):
                vote = node.execute(command)
                if acked is not None:
                    acked.record_vote(index, vote, self.now())
                if vote is None:
                    silent.append(index)
                elif round_.phase is not Phase.RAISING or before is Phase.RAISING:
                    round_.vote(index, vote, self.now())
            if round_.phase is before:
                undecided += [(round_, index) for index in silent]
        if undecided:
            timeout = min(timeout, limit)
            self.sleep(timeout)
            for round_, index in undecided:
                round_.vote(index, Failed(f"no answer within {timeout:.3g} s"), self.now())

    def send(
        self,
        command: Command,
        nodes: Sequence[int] | None = None,
        *,
        receiver: VoteReceiver | None = None,
    ) -> None:
        """Send a command; the receiver gets the replies at once."""
        for index in range(len(self.nodes)) if nodes is None else nodes:
            vote = self.nodes[index].execute(command)
            if receiver is not None:
                receiver(index, vote, self.now())


class MemorySession(NodeSession):
    """A node of this process; it is armed and read as the scripts do on a server."""

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
