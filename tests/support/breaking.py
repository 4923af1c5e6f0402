"""Ways in which a node or the network to it breaks."""

from __future__ import annotations

from collections.abc import Callable

from celery_redlock.testing import LocalCluster

LIE = b"*2147483647\r\n"


def lie(cluster: LocalCluster, node: int) -> None:
    """Announce more than any parser should make room for."""
    cluster.garbage(node, LIE)


BREAKS: dict[str, Callable[[LocalCluster, int], None]] = {
    "stopped": LocalCluster.pause,
    "refusing": LocalCluster.refuse,
    "partitioned": LocalCluster.partition,
    "talking garbage": LocalCluster.garbage,
    "lying": lie,
    "killed": LocalCluster.kill,
}


def break_nodes(cluster: LocalCluster, how: str, count: int) -> None:
    """Break the first nodes."""
    for node in range(count):
        BREAKS[how](cluster, node)


def repair_nodes(cluster: LocalCluster, count: int) -> None:
    """Undo whatever has broken the first nodes."""
    for node in range(count):
        cluster.heal(node)
        if cluster.state(node) == "dead":
            cluster.restart(node)
        cluster.resume(node)
