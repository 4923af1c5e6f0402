"""
The kind of node that is a server of Redis or Valkey.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from celery_redlock.transport.addresses import NodeAddress
from celery_redlock.transport.base import Durations
from celery_redlock.transport.kinds import Administration, NodeKind, NodeReader
from celery_redlock.transport.redis.administration import ServerAdministration, ServerReader
from celery_redlock.transport.redis.sentinel import connector_to
from celery_redlock.transport.redis.transport import RedisTransport


class Servers(NodeKind):
    """Servers named `redis://`, `rediss://` or `unix://`, and groups of them with Sentinels."""

    def open_transport(
        self,
        nodes: Sequence[NodeAddress],
        durations: Durations,
        on_deferred: Callable[[Any], object],
    ) -> RedisTransport:
        return RedisTransport(nodes, durations, on_deferred)

    def administration(self, node: NodeAddress) -> Administration:
        return ServerAdministration(node)

    def reader(self, node: NodeAddress, timeout: float) -> NodeReader:
        return ServerReader(node, timeout)

    def probe(self, node: NodeAddress, timeout: float) -> str | None:
        connection, run_id = connector_to(node, timeout).connect(native=False, awaited=True)
        connection.close()
        return run_id
