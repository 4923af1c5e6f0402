"""Lock nodes of either sort behind one face: the same tests say the same things to both."""

from __future__ import annotations

import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from celery_redlock import Lease, Redlock
from celery_redlock.core import client_of
from celery_redlock.core.attempt import Attempt, attempt_once
from celery_redlock.core.options import checked_options
from celery_redlock.protocol.commands import SOURCE, Command, read_reply
from celery_redlock.protocol.keys import (
    META_PREFIX,
    WAKE_PREFIX,
    fence_key,
    wait_queue_key,
    wake_channel,
)
from celery_redlock.protocol.node_model import StoredKey
from celery_redlock.protocol.votes import Vote
from celery_redlock.testing import LocalCluster
from celery_redlock.transport import parse_node
from celery_redlock.transport.memory import MemoryNode, memory_node
from tests.support.replication import back_up
from tests.support.waiting import RELEASE_PATIENCE, TIMEOUT, wait_until

PREFIX = "redlock:"

# Tests that do not try what happens in time must not depend on how busy the machine is.
CALM = 5.0

# With what the keys begin that a client takes to connect to all nodes.
WARM_UP = "warm-up"


def place(name: str) -> str:
    """Return the name of a key on the nodes: of a lock key, of a record, or one that is that."""
    return name if name.startswith((META_PREFIX, PREFIX)) else PREFIX + name


class Nodes(ABC):
    """A set of lock nodes that can be broken, looked into and spoken to past any client."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = list(urls)
        self._clients: list[Redlock] = []
        self._connects = itertools.count()

    def __len__(self) -> int:
        return len(self.urls)

    def client(self, *, nodes: Sequence[str] | None = None, **options: Any) -> Redlock:
        """Return a client that ends with the test; patient, unless the test says otherwise."""
        options.setdefault("node_timeout", CALM)
        client = Redlock(self.urls if nodes is None else nodes, **options)
        self._clients.append(client)
        return client

    def connected(self, **options: Any) -> Redlock:
        """Return a client that is connected to every node."""
        client = self.client(**options)
        self.connect(client)
        return client

    def connect(self, client: Redlock) -> None:
        """Let a client take locks until every node takes part."""
        # Each time another key: clients that connect at once do not wait for each other.
        key = f"{WARM_UP}-{next(self._connects)}"

        def all_take_part() -> bool:
            lease = client.acquire(key, wait=TIMEOUT)
            try:
                # Granted by a quorum: those that are slower have it a little later.
                return wait_held_by_all(lease)
            finally:
                lease.release()

        def wait_held_by_all(lease: Lease) -> bool:
            with contextlib.suppress(AssertionError):
                self.wait_held(lease, timeout=1.0)
                return True
            return False

        wait_until(all_take_part, message="a node never took part")
        self.wait_free(key)

    def attempt(self, client: Redlock, *names: str, ttl: float = 30.0) -> Attempt:
        """Make exactly one attempt and return it with every vote."""
        params, _ = checked_options(client_of(client).settings, names, ttl=ttl)
        return attempt_once(client_of(client).transport, params)

    def owners(self, name: str) -> list[str | None]:
        """Return who has a key on each node."""
        return [self.owner(node, name) for node in range(len(self))]

    def wait_free(self, name: str) -> None:
        """Wait until no node has the key."""
        wait_until(
            lambda: not any(self.owners(name)),
            RELEASE_PATIENCE,
            message=lambda: f"{name}: {self.owners(name)}",
        )

    def wait_held(
        self, lease: Lease, nodes: Sequence[int] | None = None, timeout: float = TIMEOUT
    ) -> None:
        """Wait until the nodes have the lease's key."""
        wait_until(
            lambda: all(
                self.owner(node, lease.key) == lease.owner
                for node in (range(len(self)) if nodes is None else nodes)
            ),
            timeout,
            message=lambda: f"{lease.key}: {self.owners(lease.key)}",
        )

    def lease_of(self, client: Redlock, name: str = "key", **options: Any) -> Lease:
        """Return a client's lease of a key that every node has."""
        lease = client.acquire(name, **options)
        self.wait_held(lease)
        return lease

    def hold(self, name: str, owner: str, nodes: Sequence[int], ttl: float = 60.0) -> None:
        """Let somebody else have a key on some nodes."""
        for node in nodes:
            self.put(node, name, owner, ttl)

    def lose(self, name: str, nodes: Sequence[int]) -> None:
        """Delete a key on some nodes."""
        for node in nodes:
            self.forget(node, name)

    def close(self) -> None:
        """Close the clients."""
        for client in self._clients:
            client.close()

    @abstractmethod
    def owner(self, node: int, name: str) -> str | None:
        """Return who has a key."""

    @abstractmethod
    def left(self, node: int, name: str) -> float:
        """Return the seconds that a key has left."""

    @abstractmethod
    def put(self, node: int, name: str, owner: str, ttl: float = 60.0) -> None:
        """Set a key."""

    def put_many(self, node: int, owners: Mapping[str, str]) -> None:
        """Set keys."""
        for name, owner in owners.items():
            self.put(node, name, owner)

    @abstractmethod
    def forget(self, node: int, *names: str) -> None:
        """Delete keys."""

    @abstractmethod
    def fence(self, node: int, name: str) -> int:
        """Return a key's counter."""

    @abstractmethod
    def set_fence(self, node: int, name: str, value: int) -> None:
        """Set a key's counter."""

    @abstractmethod
    def waiting(self, node: int, name: str) -> list[str]:
        """Return who waits for a key, first to be woken first."""

    @abstractmethod
    def woken(self, node: int) -> list[tuple[str, str]]:
        """Return the channel and name of each wake-up since the last call; the first finds none."""

    @abstractmethod
    def now_us(self, node: int) -> int:
        """Return a node's wall clock."""

    @abstractmethod
    def run(self, node: int, command: Command) -> Vote:
        """Run a command past any client."""

    @abstractmethod
    def pause(self, *nodes: int) -> None:
        """Stop nodes; what is said to them meanwhile runs later."""

    @abstractmethod
    def resume(self, *nodes: int) -> None:
        """Let stopped nodes run on."""

    @abstractmethod
    def kill(self, *nodes: int) -> None:
        """End nodes; they refuse connections."""

    @abstractmethod
    def restart(self, *nodes: int, keep_data: bool = False) -> None:
        """Start nodes again, empty or with what they had."""

    @abstractmethod
    def flush(self, *nodes: int) -> None:
        """Remove all data, while they run on."""

    @abstractmethod
    def flip_role(self, *nodes: int) -> None:
        """Make nodes replicas, and masters again."""

    @abstractmethod
    def back_up(self, *nodes: int) -> None:
        """Attach a backup to nodes; the first one changes their replication ids."""


class MemoryNodes(Nodes):
    """In-memory nodes of this process."""

    def __init__(self, urls: Sequence[str]) -> None:
        super().__init__(urls)
        self.nodes = [memory_node(parse_node(url)) for url in urls]

    def owner(self, node: int, name: str) -> str | None:
        return self.nodes[node].state.owner(place(name), self.now_us(node))

    def left(self, node: int, name: str) -> float:
        ends = self.nodes[node].state.keys[place(name)].expires_at
        return (ends - self.now_us(node) // 1000) / 1000

    def put(self, node: int, name: str, owner: str, ttl: float = 60.0) -> None:
        ends = self.now_us(node) // 1000 + round(ttl * 1000)
        self.nodes[node].state.keys[place(name)] = StoredKey(owner, ends)

    def forget(self, node: int, *names: str) -> None:
        for name in names:
            self.nodes[node].state.keys.pop(place(name), None)

    def fence(self, node: int, name: str) -> int:
        return self.nodes[node].state.fences.get(fence_key(place(name)), 0)

    def set_fence(self, node: int, name: str, value: int) -> None:
        self.nodes[node].state.fences[fence_key(place(name))] = value

    def waiting(self, node: int, name: str) -> list[str]:
        queue = self.nodes[node].state.waiting.get(place(name))
        return [] if queue is None else queue.first(len(queue.scores))

    def woken(self, node: int) -> list[tuple[str, str]]:
        state = self.nodes[node].state
        published, state.published = state.published, []
        return [(wake_channel(key), name) for key, name in published]

    def now_us(self, node: int) -> int:
        return self.nodes[node].now_us()

    def run(self, node: int, command: Command) -> Vote:
        return self.nodes[node].state.run(command, self.now_us(node))

    def pause(self, *nodes: int) -> None:
        for node in nodes:
            self.nodes[node].pause()

    def resume(self, *nodes: int) -> None:
        for node in nodes:
            self.nodes[node].resume()

    def kill(self, *nodes: int) -> None:
        for node in nodes:
            self.nodes[node].kill()

    def restart(self, *nodes: int, keep_data: bool = False) -> None:
        for node in nodes:
            self.nodes[node].restart(keep_data=keep_data)

    def flush(self, *nodes: int) -> None:
        for node in nodes:
            self.nodes[node].state.lose_data()

    def flip_role(self, *nodes: int) -> None:
        for node in nodes:
            flip_role(self.nodes[node])

    def back_up(self, *nodes: int) -> None:
        for node in nodes:
            renew_backlog(self.nodes[node])


def flip_role(node: MemoryNode) -> None:
    """Make a node a replica, and then a master again."""
    before = node.state.identity
    node.state.identity = replace(before, replication=uuid4().hex, promoted_from=before.replication)


def renew_backlog(node: MemoryNode) -> None:
    """Create the replication backlog, or free it, as when a backup attaches or has gone."""
    node.state.identity = replace(node.state.identity, replication=uuid4().hex, promoted_from="")


class ServerNodes(Nodes):
    """Real servers on this machine."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(cluster.urls)
        self.cluster = cluster
        self._subscribed: dict[int, Any] = {}

    def owner(self, node: int, name: str) -> str | None:
        found: Any = self.cluster.client(node).get(place(name))
        return None if found is None else found.decode()

    def left(self, node: int, name: str) -> float:
        left: Any = self.cluster.client(node).pttl(place(name))
        return float(left / 1000)

    def connections(self, node: int) -> int:
        """Return how many connections a server has."""
        found: Any = self.cluster.client(node).info("clients")
        return int(found["connected_clients"])

    def put(self, node: int, name: str, owner: str, ttl: float = 60.0) -> None:
        self.cluster.client(node).set(place(name), owner, px=round(ttl * 1000))

    def put_many(self, node: int, owners: Mapping[str, str]) -> None:
        with self.cluster.client(node).pipeline() as pipeline:
            for name, owner in owners.items():
                pipeline.set(place(name), owner, ex=60)
            pipeline.execute()

    def forget(self, node: int, *names: str) -> None:
        self.cluster.client(node).delete(*map(place, names))

    def fence(self, node: int, name: str) -> int:
        found: Any = self.cluster.client(node).get(fence_key(place(name)))
        return int(found or 0)

    def set_fence(self, node: int, name: str, value: int) -> None:
        self.cluster.client(node).set(fence_key(place(name)), value)

    def waiting(self, node: int, name: str) -> list[str]:
        found: Any = self.cluster.client(node).zrange(wait_queue_key(place(name)), 0, -1)
        return [waiter.decode() for waiter in found]

    def woken(self, node: int) -> list[tuple[str, str]]:
        subscribed = self._subscribed.get(node)
        if subscribed is None:
            self._subscribed[node] = subscribed = self.cluster.client(node).pubsub()
            subscribed.psubscribe(f"{WAKE_PREFIX}*")
        # The reply to the PING comes behind what was published before.
        subscribed.ping("all")
        found = []
        while True:
            message = subscribed.get_message(timeout=TIMEOUT)
            if message["type"] == "pmessage":
                found.append((message["channel"].decode(), message["data"].decode()))
            elif message["type"] == "pong":
                return found

    def now_us(self, node: int) -> int:
        seconds, micros = self.cluster.client(node).time()
        return int(seconds) * 1_000_000 + int(micros)

    def run(self, node: int, command: Command) -> Vote:
        reply: Any = self.cluster.client(node).eval(
            SOURCE[command.script], len(command.keys), *command.keys, "nonce", *command.args
        )
        assert reply[0] == b"nonce"
        return read_reply(reply[1:])

    def pause(self, *nodes: int) -> None:
        for node in nodes:
            self.cluster.pause(node)

    def resume(self, *nodes: int) -> None:
        for node in nodes:
            self.cluster.resume(node)

    def kill(self, *nodes: int) -> None:
        for node in nodes:
            self.cluster.kill(node)

    def restart(self, *nodes: int, keep_data: bool = False) -> None:
        for node in nodes:
            self.cluster.restart(node, keep_data=keep_data)

    def flush(self, *nodes: int) -> None:
        for node in nodes:
            self.cluster.flush(node)

    def flip_role(self, *nodes: int) -> None:
        for node in nodes:
            client = self.cluster.client(node)
            # Nobody listens on port 1, so nothing is copied: the role alone changes, twice.
            client.replicaof("127.0.0.1", 1)
            client.replicaof("NO", "ONE")

    def back_up(self, *nodes: int) -> None:
        for node in nodes:
            back_up(self.cluster, node)
