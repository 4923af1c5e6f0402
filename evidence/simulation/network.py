"""
The network: connections that keep order, delay, break and are cut, and what a dial does.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import hiredis

from celery_redlock.transport import Listener
from celery_redlock.transport.addresses import NodeAddress
from celery_redlock.transport.redis.connect_error import check_role
from celery_redlock.transport.redis.connection import NodeConnection
from celery_redlock.transport.redis.masters import MasterWatch
from evidence.simulation.scheduler import Machine, Scheduler
from evidence.simulation.shims import READ, WRITE, Files, Poller

if TYPE_CHECKING:
    from evidence.simulation.node import Server
    from evidence.simulation.plan import Plan


class Network:
    """All connections between machines and nodes."""

    def __init__(self, scheduler: Scheduler, files: Files, plan: Plan) -> None:
        self.scheduler = scheduler
        self.files = files
        self.patience = plan.node_timeout
        self.buffer = plan.buffer
        self.pieces = plan.buffer < 10_000
        self.late_replies = 0
        self.woken = 0
        self.connections = 0
        self._seed = plan.seed
        self._delay = plan.delay
        self._random: dict[tuple[str, int], random.Random] = {}
        #: until when a pair is cut off from each other, and how much slower it is until when
        self._cut: dict[tuple[str, int], float] = {}
        self._slow: dict[tuple[str, int], tuple[float, float]] = {}
        self._wires: list[Wire] = []
        self.subscribers: list[SimWakeUps] = []
        self.servers: dict[tuple[str, int], Server] = {}

    def publish(self, node: int, channel: str, name: str) -> None:
        """A node publishes something to all clients that are in touch with it."""
        for subscriber in self.subscribers:
            subscriber.publish(node, channel, name)

    def delay(self, machine: Machine, node: int) -> float:
        pair = (machine.name, node)
        rng = self._random.get(pair)
        if rng is None:
            rng = self._random[pair] = random.Random(f"{self._seed} {pair}")
        draw = rng.random()
        base = self._delay * (0.5 + draw)
        if draw > 0.995:
            base += self.patience * 2 * rng.random()
        if pair in self._slow:
            until, extra = self._slow[pair]
            if self.scheduler.now < until:
                base += extra * (0.5 + rng.random())
        return base

    def cut_until(self, machine: Machine, node: int) -> float:
        return self._cut.get((machine.name, node), 0.0)

    def cut(self, machine: Machine, node: int, until: float) -> None:
        pair = (machine.name, node)
        self._cut[pair] = max(until, self._cut.get(pair, 0.0))

    def slow(self, machine: Machine, node: int, until: float, extra: float) -> None:
        self._slow[(machine.name, node)] = (until, extra)

    def heal(self) -> None:
        now = self.scheduler.now
        self._cut = dict.fromkeys(self._cut, now)
        self._slow.clear()

    def add(self, wire: Wire) -> None:
        self.connections += 1
        self._wires = [other for other in self._wires if not other.closed]
        self._wires.append(wire)

    def wires(self, machine: Machine | None, node: int) -> list[Wire]:
        return [
            wire
            for wire in self._wires
            if wire.node.index == node and (machine is None or wire.machine is machine)
        ]


class Wire:
    """
    One TCP connection. What is said arrives once, in order, or not at all after a break.

    It is the client's socket, too, and the connection that is closed with it: `send`, `sendall`,
    `recv`, `fileno`, `setblocking` and `disconnect` are what clients call, `ready` is what a poll
    asks.
    """

    def __init__(self, network: Network, machine: Machine, node: Server) -> None:
        self.machine = machine
        self.node = node
        self.epoch = node.epoch
        self.closed = False
        self.pollers: list[Poller] = []
        #: With a small buffer calls arrive in pieces; otherwise one send is one arrival.
        self.reader = hiredis.Reader() if network.pieces else None
        self._network = network
        self._scheduler = network.scheduler
        self._fd = network.files.add(self)
        self._inbox: deque[bytes] = deque()
        # On their way, oldest first. An arrival takes the oldest, whichever it was planned for, so
        # that arrivals which a cut moves to one instant cannot overtake each other.
        self._to_node: deque[tuple[bytes, float]] = deque()
        self._to_client: deque[tuple[bytes, float]] = deque()
        self._broken = False
        self._in_flight = 0
        self._to_node_at = 0.0
        self._to_client_at = 0.0
        #: Nothing arrives after this: the break cuts off the tail, never the middle.
        self._nothing_after = float("inf")

    def setblocking(self, flag: bool) -> None:
        pass

    def fileno(self) -> int:
        return self._fd

    def ready(self, wanted: int) -> int:
        mask = READ if self._inbox or self._broken else 0
        if wanted & WRITE and (self._broken or self._in_flight < self._network.buffer):
            mask |= WRITE
        return mask

    def send(self, data: bytes) -> int:
        if self.machine.dead:
            return len(data)
        if self._broken:
            raise BrokenPipeError(32, "Broken pipe")
        room = self._network.buffer - self._in_flight
        if room <= 0:
            raise BlockingIOError
        if room < len(data):
            data = data[:room]
        self._in_flight += len(data)
        now = self._scheduler.now
        arrival = max(self._to_node_at, now + self._network.delay(self.machine, self.node.index))
        self._to_node_at = arrival
        self._to_node.append((data, now))
        self._scheduler.at(arrival, self._arrive)
        return len(data)

    def sendall(self, data: bytes) -> None:
        sent = self.send(data)
        assert sent == len(data)

    def recv(self, _size: int) -> bytes:
        if self._inbox:
            data = b"".join(self._inbox)
            self._inbox.clear()
            return data
        if self._broken:
            raise ConnectionResetError(104, "Connection reset by peer")
        raise BlockingIOError

    def disconnect(self) -> None:
        """The client closes; what it had said still arrives."""
        self.closed = True
        self._network.files.by_fd.pop(self._fd, None)
        self._inbox.clear()
        self.pollers.clear()

    def break_off(self, seconds: float) -> None:
        """Break: what would arrive later than so many seconds from now never does."""
        self._nothing_after = min(self._nothing_after, self._scheduler.now + seconds)
        self._scheduler.after(seconds, self._reset)

    def answer(self, data: bytes, said_at: float) -> None:
        """The node says something."""
        if self.closed:
            return
        delay = self._network.delay(self.machine, self.node.index)
        arrival = max(self._to_client_at, self._scheduler.now + delay)
        self._to_client_at = arrival
        self._to_client.append((data, said_at))
        self._scheduler.at(arrival, self._deliver)

    def _arrive(self) -> None:
        now = self._scheduler.now
        if now > self._nothing_after:
            return
        cut = self._network.cut_until(self.machine, self.node.index)
        if cut > now:
            self._to_node_at = max(self._to_node_at, cut)
            self._scheduler.at(cut, self._arrive)
            return
        data, said_at = self._to_node.popleft()
        self.node.receive(self, data, said_at)

    def publish(self, channel: str, name: str) -> None:
        """The node publishes something."""
        self._network.publish(self.node.index, channel, name)

    def taken(self, size: int) -> None:
        """The node has read so many bytes."""
        full = self._in_flight >= self._network.buffer
        self._in_flight -= size
        if full:
            self._notify()

    def _deliver(self) -> None:
        now = self._scheduler.now
        if now > self._nothing_after or self.closed:
            return
        cut = self._network.cut_until(self.machine, self.node.index)
        if cut > now:
            self._to_client_at = max(self._to_client_at, cut)
            self._scheduler.at(cut, self._deliver)
            return
        data, said_at = self._to_client.popleft()
        if now - said_at > self._network.patience:
            self._network.late_replies += 1
        self._inbox.append(data)
        self._notify()

    def _reset(self) -> None:
        if self.closed or self._broken:
            return
        cut = self._network.cut_until(self.machine, self.node.index)
        if cut > self._scheduler.now:
            self._scheduler.at(cut, self._reset)
            return
        self._broken = True
        self._notify()

    def _notify(self) -> None:
        for poller in tuple(self.pollers):
            poller.notify()

    def refused(self) -> None:
        """Another process answers at this address: it knows nothing of this connection."""
        self._scheduler.after(self._network.delay(self.machine, self.node.index), self._reset)


class SimWakeUps:
    """The wake-ups of one client, as `RedisWakeUps`: what a cut link would have brought is lost."""

    def __init__(self, network: Network, files: Files) -> None:
        self._network = network
        self._files = files
        self._machine: Machine | None = None
        self._by_channel: dict[str, dict[Listener, None]] = {}
        network.subscribers.append(self)

    def add(self, listener: Listener, channels: Iterable[str]) -> None:
        self._machine = self._files.machine()
        for channel in channels:
            self._by_channel.setdefault(channel, {})[listener] = None

    def remove(self, listener: Listener, channels: Iterable[str]) -> None:
        for channel in channels:
            self._by_channel.get(channel, {}).pop(listener, None)

    def are_live(self, channels: frozenset[str]) -> bool:
        return True

    def close(self) -> None:
        self._by_channel.clear()

    def publish(self, node: int, channel: str, name: str) -> None:
        network, machine = self._network, self._machine
        if machine is None or machine.dead or not self._by_channel.get(channel):
            return
        if network.cut_until(machine, node) <= network.scheduler.now:
            delay = network.delay(machine, node)
            network.scheduler.after(delay, self._deliver, machine, channel, name)

    def _deliver(self, machine: Machine, channel: str, name: str) -> None:
        if not machine.dead:
            for listener in tuple(self._by_channel.get(channel, ())):
                self._network.woken += 1
                listener.on_wake(name, channel)


class SimConnector:
    """Opens connections, as `Connector` and `GroupConnector` do."""

    def __init__(
        self,
        network: Network,
        address: NodeAddress,
        timeout: float,
        watch: MasterWatch | None = None,
    ) -> None:
        self.address = address
        self._network = network
        self._timeout = timeout
        self._watch = watch

    def connect(self) -> tuple[NodeConnection, str | None]:
        master = self._watch.master_of(self.address) if self._watch is not None else None
        # TCP, then INFO and SCRIPT LOAD in one piece
        wire = self._dial(master.address if master is not None else self._written, trips=4)
        node: Any = wire.node
        if master is not None and self._watch is not None:
            check_role({"role": "slave" if node.read_only else "master"})
            if quarantine_ms := self._watch.quarantine_ms:
                now_us = node.clock.wall_us()
                master.has_voted |= node.state.lead(master.epoch, quarantine_ms, now_us)
        node.load_scripts()
        return NodeConnection(wire, wire, master), f"run {node.index} {node.epoch}"

    def open_unchecked(self, _master: object) -> tuple[Wire, Wire]:
        wire = self._dial(self._written, trips=2)
        return wire, wire

    @property
    def _written(self) -> tuple[str, int]:
        """The host and port that the URL names."""
        host, _, port = self.address.identity.partition(":")
        return host, int(port)

    def _dial(self, address: tuple[str, int], trips: int) -> Wire:
        machine = self._network.files.machine()
        network = self._network
        node = network.servers[address]
        seconds = sum(network.delay(machine, node.index) for _ in range(trips))
        now = network.scheduler.now
        silent_until = max(network.cut_until(machine, node.index), node.stopped_until)
        if silent_until > now + self._timeout:
            machine.wait(self._timeout)
            raise TimeoutError(110, "timed out")
        machine.wait(max(seconds, silent_until - now))
        if node.down:
            raise ConnectionRefusedError(111, "Connection refused")
        wire = Wire(network, machine, node)
        network.add(wire)
        return wire
