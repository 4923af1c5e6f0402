"""
Sends a command to N nodes at once and returns their votes.
"""

from collections.abc import Callable, Sequence

from celery_redlock.errors import ConfigurationError
from celery_redlock.transport.addresses import (
    NodeAddress,
    advice_about,
    parse_node,
    parse_nodes,
    split_nodes,
)
from celery_redlock.transport.base import (
    NODE_ERRORS,
    AckedNodes,
    Channel,
    Durations,
    NodeKind,
    NodeSession,
    Transport,
    borrowed,
)
from celery_redlock.transport.listeners import Listener, WaitingCall
from celery_redlock.transport.memory import MemorySession, MemoryTransport, memory_node
from celery_redlock.transport.redis.nodes import ServerSession, probe_server
from celery_redlock.transport.redis.transport import RedisTransport

__all__ = [
    "MEMORY",
    "NODE_ERRORS",
    "SERVERS",
    "AckedNodes",
    "Channel",
    "Durations",
    "Listener",
    "NodeAddress",
    "NodeKind",
    "NodeSession",
    "RedisTransport",
    "Transport",
    "WaitingCall",
    "advice_about",
    "borrowed",
    "kind_of",
    "open_transport",
    "parse_node",
    "parse_nodes",
    "split_nodes",
]


SERVERS = NodeKind(open_transport=RedisTransport, session=ServerSession, probe=probe_server)
MEMORY = NodeKind(
    open_transport=lambda nodes, *_: MemoryTransport([memory_node(node) for node in nodes]),
    session=MemorySession,
    probe=lambda *_: None,  # it serves; a test that makes it fail wants to see the locks fail
    is_in_process=True,
)


def kind_of(node: NodeAddress) -> NodeKind:
    """Return the kind of a node, which the scheme of its URL names."""
    return MEMORY if node.scheme == "memory" else SERVERS


def open_transport(
    nodes: Sequence[NodeAddress],
    durations: Durations,
    on_deferred: Callable[[RedisTransport], object],
) -> Transport:
    """Return a transport for the nodes, see `RedisTransport`; it connects when it is first used."""
    kind, *others = dict.fromkeys(map(kind_of, nodes))
    if others:
        raise ConfigurationError(
            "memory:// lock nodes live in this process and cannot be mixed with servers. "
            "Name nodes of one kind only."
        )
    return kind.open_transport(nodes, durations, on_deferred)
