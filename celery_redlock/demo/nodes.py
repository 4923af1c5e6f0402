"""
How the lock nodes are, for people who watch.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from redis.exceptions import RedisError

from celery_redlock.demo.scene import ACCOUNTS
from celery_redlock.protocol.keys import GUARD_KEY
from celery_redlock.testing import LocalCluster

__all__ = ["NodeState", "look_at"]

_LOCKS = [f"redlock:account:{account}" for account in ACCOUNTS]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """
    One node at one moment.

    Attributes:
        state: `quarantined` is up, and sits out because it may have forgotten locks.
        votes_in: seconds that it still sits out.
        held: accounts whose lock is on this node.
    """

    state: Literal["up", "stopped", "killed", "quarantined"]
    votes_in: float = 0.0
    held: frozenset[str] = frozenset()


def look_at(cluster: LocalCluster, index: int) -> NodeState:
    """Ask one node; one that cannot answer is not asked."""
    state = cluster.state(index)
    if state != "running":
        return NodeState(state="stopped" if state == "paused" else "killed")
    try:
        record, *holders = cluster.client(index).mget([GUARD_KEY, *_LOCKS])
    except RedisError:
        return NodeState(state="killed")
    held = frozenset(
        account for account, holder in zip(ACCOUNTS, holders, strict=True) if holder is not None
    )
    # "<identity> <not before, in microseconds>"; without a record the first question writes one.
    text = record.decode() if isinstance(record, bytes) else record
    votes_in = int(text.rpartition(" ")[2]) / 1e6 - time.time() if text else 0.0
    if not text or votes_in > 0:
        return NodeState(state="quarantined", votes_in=max(0.0, votes_in), held=held)
    return NodeState(state="up", held=held)
