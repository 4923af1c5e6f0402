"""
Asking each node whether it can serve, before anybody needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    ResponseError,
)

from celery_redlock.transport import NodeAddress, parse_nodes
from celery_redlock.transport.redis.connector import Connector, describe_failure

#: What a wrong URL causes; everything else may pass by itself.
_WRONG_SETTING = (AuthenticationError, AuthorizationError, NoPermissionError, ResponseError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """
    How one node answered.

    Attributes:
        name: the node, without user and password.
        problem: why it cannot serve; None if it can.
        lasting: the problem is a wrong setting, which waiting does not mend.
    """

    name: str
    problem: str | None
    lasting: bool


def probe_nodes(nodes: str | Sequence[str], *, timeout: float = 1.0) -> list[ProbeResult]:
    """Connect to each node, authenticate, and load the scripts; takes about `timeout` at most."""
    addresses = parse_nodes(nodes)
    with ThreadPoolExecutor(len(addresses)) as pool:
        return list(pool.map(lambda node: _probe(node, timeout), addresses))


def _probe(node: NodeAddress, timeout: float) -> ProbeResult:
    if node.name.startswith("memory://"):
        return ProbeResult(name=node.name, problem=None, lasting=False)
    try:
        connection, _ = Connector(node, timeout).connect(native=False)
    except Exception as exc:
        lasting = isinstance(exc, _WRONG_SETTING)
        return ProbeResult(name=node.name, problem=describe_failure(exc), lasting=lasting)
    connection.close()
    return ProbeResult(name=node.name, problem=None, lasting=False)
