"""
What replicas and backups do to a server.
"""

from __future__ import annotations

import socket
from typing import Any

from celery_redlock.testing import LocalCluster
from tests.support.waiting import wait_until


def port_of(cluster: LocalCluster, node: int) -> int:
    return int(cluster.client(node).connection_pool.connection_kwargs["port"])


def follow(cluster: LocalCluster, node: int, leader: int) -> None:
    """Make a server a replica of another one, and wait until it has the data."""
    # A master waits this long, 5 s by default, for more replicas that want the same copy.
    cluster.client(leader).config_set("repl-diskless-sync-delay", 0)
    cluster.client(node).replicaof("127.0.0.1", port_of(cluster, leader))
    wait_until(lambda: replication(cluster, node)["master_link_status"] == "up")


def promote(cluster: LocalCluster, node: int) -> None:
    cluster.client(node).replicaof("NO", "ONE")


def back_up(cluster: LocalCluster, node: int) -> None:
    """Begin a backup as `redis-cli --rdb` does, and leave; the server has a backlog then."""
    with socket.create_connection(("127.0.0.1", port_of(cluster, node))) as connection:
        connection.sendall(b"SYNC\r\n")
        wait_until(lambda: replication(cluster, node)["repl_backlog_active"] == 1)


def free_backlog(cluster: LocalCluster, node: int) -> None:
    """Let a master free its backlog as soon as no replica is there, and wait until it has."""
    client = cluster.client(node)
    before = client.config_get("repl-backlog-ttl")["repl-backlog-ttl"]
    client.config_set("repl-backlog-ttl", 1)
    wait_until(lambda: replication(cluster, node)["repl_backlog_active"] == 0)
    client.config_set("repl-backlog-ttl", before)


def replication(cluster: LocalCluster, node: int) -> dict[str, Any]:
    found: dict[str, Any] = cluster.client(node).info("replication")
    return found
