"""
The kind of node that lives in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from celery_redlock.transport.addresses import NodeAddress
from celery_redlock.transport.base import Durations
from celery_redlock.transport.kinds import Administration, NodeKind, NodeReader
from celery_redlock.transport.memory.administration import MemoryAdministration, MemoryReader
from celery_redlock.transport.memory.transport import MemoryTransport, memory_node


class MemoryNodes(NodeKind):
    """Nodes named `memory://name`."""

    is_in_process = True

    def open_transport(
        self,
        nodes: Sequence[NodeAddress],
        durations: Durations,
        on_deferred: Callable[[Any], object],
    ) -> MemoryTransport:
        return MemoryTransport([memory_node(node) for node in nodes])

    def administration(self, node: NodeAddress) -> Administration:
        return MemoryAdministration(memory_node(node))

    def reader(self, node: NodeAddress, timeout: float) -> NodeReader:
        return MemoryReader(memory_node(node))

    def probe(self, node: NodeAddress, timeout: float) -> str | None:
        return None  # it serves; a test that makes it fail wants to see the locks fail
