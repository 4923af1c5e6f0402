"""
Sends a command to N nodes at once and returns their votes.
"""

from collections.abc import Callable, Mapping, Sequence

from celery_redlock.errors import ConfigurationError
from celery_redlock.transport.addresses import (
    NodeAddress,
    advice_about,
    parse_node,
    parse_nodes,
    split_nodes,
)
from celery_redlock.transport.base import AckedNodes, Channel, Durations, Transport, borrowed
from celery_redlock.transport.kinds import Administration, NodeKind, NodeReader
from celery_redlock.transport.listeners import Listener, WaitingCall
from celery_redlock.transport.memory.nodes import MemoryNodes
from celery_redlock.transport.redis.nodes import Servers
from celery_redlock.transport.redis.transport import RedisTransport

__all__ = [
    "KINDS",
    "MEMORY",
    "SERVERS",
    "AckedNodes",
    "Administration",
    "Channel",
    "Durations",
    "Listener",
    "NodeAddress",
    "NodeKind",
    "NodeReader",
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


SERVERS, MEMORY = Servers(), MemoryNodes()

#: The kind of a node, by the scheme of its URL.
KINDS: Mapping[str, NodeKind] = {
    "redis": SERVERS,
    "rediss": SERVERS,
    "unix": SERVERS,
    "redis+sentinel": SERVERS,
    "rediss+sentinel": SERVERS,
    "memory": MEMORY,
}


def kind_of(node: NodeAddress) -> NodeKind:
    """Return the kind of a node."""
    return KINDS[node.scheme]


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
