"""
The keys that remain on a node after very many locks of distinct keys.
"""

from __future__ import annotations

import time

from bench.results import Goal, Result
from celery_redlock import Redlock
from celery_redlock.protocol.keys import FENCE_BUCKETS
from celery_redlock.testing import LocalCluster

_HANDFUL = 4
_SETTLED_WITHIN = 10.0


def keys_left(quick: bool) -> list[Result]:
    """Count each node's keys after 100 000 locks have been taken and released."""
    locks = 20_000 if quick else 100_000
    with LocalCluster(5) as nodes, Redlock(nodes.urls, key_prefix="lock:") as redlock:
        for number in range(locks):
            redlock.acquire(f"key {number}").release()
        counts = [_stable_count(nodes, index) for index in range(len(nodes))]
    return [
        Result(
            row="keys",
            what=f"keys on a node after {locks} locks of distinct keys",
            goal=Goal(value=FENCE_BUCKETS + _HANDFUL, limit="most"),
            values=counts,
            detail="one value for each node",
        )
    ]


def _stable_count(nodes: LocalCluster, index: int) -> int:
    """Count when the last release, which nobody waits for on every node, has arrived."""
    client = nodes.client(index)
    deadline = time.monotonic() + _SETTLED_WITHIN
    while next(client.scan_iter("lock:*", count=10_000), None) and time.monotonic() < deadline:
        time.sleep(0.05)
    return int(client.dbsize())
