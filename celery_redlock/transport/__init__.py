"""
Sends a command to N nodes at once and returns their votes.
"""

from collections.abc import Callable, Sequence

from celery_redlock.errors import ConfigurationError
from celery_redlock.transport.addresses import NodeAddress, advice_about, parse_node, parse_nodes
from celery_redlock.transport.base import AckedNodes, Channel, Transport, borrowed
from celery_redlock.transport.listeners import Listener, WaitingCall
from celery_redlock.transport.memory import MemoryTransport, memory_node
from celery_redlock.transport.redis.transport import RedisTransport

__all__ = [
    "AckedNodes",
    "Channel",
    "Listener",
    "NodeAddress",
    "RedisTransport",
    "Transport",
    "WaitingCall",
    "advice_about",
    "borrowed",
    "open_transport",
    "parse_node",
    "parse_nodes",
]


def open_transport(
    nodes: Sequence[NodeAddress],
    *,
    node_timeout: float,
    max_ttl: float,
    on_deferred: Callable[[RedisTransport], object],
) -> Transport:
    """Return a transport for the nodes, see `RedisTransport`; it connects when it is first used."""
    in_memory = [node for node in nodes if node.name.startswith("memory://")]
    if not in_memory:
        return RedisTransport(
            nodes, node_timeout=node_timeout, max_ttl=max_ttl, on_deferred=on_deferred
        )
    if len(in_memory) < len(nodes):
        raise ConfigurationError(
            "memory:// lock nodes live in this process and cannot be mixed with servers. "
            "Name nodes of one kind only."
        )
    return MemoryTransport([memory_node(node) for node in nodes])
