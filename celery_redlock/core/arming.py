"""
Arming brand-new nodes, so that they vote at once instead of sitting out one longest lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from celery_redlock.protocol.naming import GUARD_KEY
from celery_redlock.protocol.scripts import ARM_SOURCE
from celery_redlock.transport import NodeAddress, parse_nodes
from celery_redlock.transport.dial import describe_failure
from celery_redlock.transport.memory import memory_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Armed:
    """
    What became of one node.

    Attributes:
        name: the node, without user and password.
        state: `armed`, `serving`, `quarantined`, `other`, `missing` or `failed`.
        detail: what it means, in a sentence.
    """

    name: str
    state: str
    detail: str

    @property
    def serves(self) -> bool:
        """Tell whether the node votes now."""
        return self.state in ("armed", "serving")


_DETAIL = {
    "armed": "brand-new, votes from now on",
    "serving": "votes already",
    "quarantined": "restarted lately and sits out; it votes by itself when old leases have ended",
    "other": "restarted since it last voted; it will sit out and then vote by itself",
    "missing": "has no record although other nodes of the set are in use, so it may have crashed "
    "and lost its locks; it will sit out and then vote by itself",
}


def arm_nodes(nodes: str | Sequence[str], *, force: bool = False) -> list[Armed]:
    """
    Let brand-new nodes vote at once.

    Safe on a set that is in use: a node without a record is armed only if no node of the set has
    one, because a node that crashed and came back empty looks like a new one.

    Args:
        nodes: URLs of the whole set.
        force: arm every node, whatever its record says. Only when no lock is held anywhere.
    """
    addresses = parse_nodes(nodes)
    if force:
        return [_ask(node, "force") for node in addresses]
    seen = [_ask(node, "look") for node in addresses]
    in_use = any(answer.state not in ("missing", "failed") for answer in seen)
    if in_use:
        return seen
    return [
        _ask(node, "new") if answer.state == "missing" else answer
        for node, answer in zip(addresses, seen, strict=True)
    ]


def _ask(node: NodeAddress, mode: str) -> Armed:
    if node.name.startswith("memory://"):
        memory_node(node).state.arm()
        return Armed(name=node.name, state="armed", detail=_DETAIL["armed"])
    try:
        with Redis.from_url(
            node.url,
            socket_timeout=2.0,
            socket_connect_timeout=2.0,
            retry=Retry(NoBackoff(), 0),
        ) as client:
            answer = client.eval(ARM_SOURCE, 1, GUARD_KEY, mode)
    except (RedisError, OSError) as exc:
        return Armed(name=node.name, state="failed", detail=describe_failure(exc))
    state = answer.decode() if isinstance(answer, bytes) else str(answer)
    return Armed(name=node.name, state=state, detail=_DETAIL[state])
