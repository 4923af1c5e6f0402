"""
The nodes of one client, as all its channels see them: how to connect, health, limits.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from celery_redlock._greenlets.unpatched import native_lock
from celery_redlock.protocol.timing import quorum
from celery_redlock.transport import clock
from celery_redlock.transport.addresses import NodeAddress
from celery_redlock.transport.base import Durations
from celery_redlock.transport.redis.connection import NodeConnection
from celery_redlock.transport.redis.health import NodeHealth
from celery_redlock.transport.redis.masters import MasterWatch, connector_to

#: Seconds that closing waits for the connection attempts under way.
_CLOSES_WITHIN = 2.0


class NodeSet:
    """
    The nodes of one client.

    Attributes:
        names: the nodes' display names, without passwords.
        connectors: one for each node.
        watch: knows the masters of the nodes that can fail over; None if none can.
        health: one for each node.
        quorum: size of a quorum.
        node_timeout: seconds in which a node has to answer, also in each step of connecting.
        max_ttl: longest lease, in seconds.
        connecting: an object for each connection attempt that is under way.
    """

    def __init__(self, addresses: Sequence[NodeAddress], durations: Durations) -> None:
        self.node_timeout, self.max_ttl = durations.node_timeout, durations.max_ttl
        self.names = tuple(address.name for address in addresses)
        self.quorum = quorum(len(addresses))
        watched = [address for address in addresses if address.fails_over]
        self.watch = MasterWatch(watched, durations) if watched else None
        self.connectors = [
            connector_to(address, self.node_timeout, self.watch) for address in addresses
        ]
        self.health = [NodeHealth(name) for name in self.names]
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forget what the threads of a parent process were doing."""
        self.connecting: set[object] = set()
        self._run_ids: dict[int, str] = {}
        self._lock = native_lock()
        if self.watch is not None:
            self.watch.reset_after_fork()

    def leads_to_former(self, index: int, connection: NodeConnection) -> bool:
        """Return whether a connection leads to a server that is no longer its node's master."""
        if self.watch is None or connection.master is None:
            return False
        group = self.watch.groups[self.connectors[index].address.identity]
        return group.master is not connection.master

    def has_deferred(self) -> bool:
        """Return whether releases are deferred."""
        return any(health.has_deferred for health in self.health)

    def duplicate_server_problem(self, index: int, run_id: str | None) -> str:
        """Return why a node may not vote: it has the run id of another node. Empty if it may."""
        if run_id is None:
            return ""
        # Both connections to one server are mostly made at the same time.
        with self._lock:
            for other, known in self._run_ids.items():
                if other != index and known == run_id:
                    return same_server_as(self.names[other])
            self._run_ids[index] = run_id
        return ""

    def wait_for_connects(self) -> None:
        """Wait until no connection attempt is under way; gives up one that takes too long."""
        deadline = clock.now() + _CLOSES_WITHIN
        # Attempts run in native threads or in greenlets; only sleep lets both run.
        while self.connecting and clock.now() < deadline and not sys.is_finalizing():
            time.sleep(0.002)


def same_server_as(other: str) -> str:
    """Return why a node must not vote: it is the same server as another node."""
    return f"is the same server as {other}, which would have two votes; name independent servers"
