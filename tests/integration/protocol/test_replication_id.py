"""
`master_replid` is new at each start of a master and at each promotion, whatever the server.

The restart quarantine stands on this fact (decision 0023), so each sort of server shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from celery_redlock.testing import LocalCluster
from tests.integration.protocol.conftest import DEBIAN_PARAM, binary_of
from tests.support.waiting import wait_until

#: Does something to the first of two servers, and yields after each step that makes it forget.
Scene = Callable[[LocalCluster], Iterator[None]]


def follow(cluster: LocalCluster, node: int, leader: int) -> None:
    """Make a server a replica of another one, and wait until it has the data."""
    port = cluster.client(leader).connection_pool.connection_kwargs["port"]
    cluster.client(node).replicaof("127.0.0.1", port)
    wait_until(lambda: cluster.client(node).info("replication")["master_link_status"] == "up")


def promote(cluster: LocalCluster, node: int) -> None:
    cluster.client(node).replicaof("NO", "ONE")


def killed_and_empty(cluster: LocalCluster) -> Iterator[None]:
    for _ in range(3):
        cluster.restart(0)
        yield


def killed_with_a_snapshot(cluster: LocalCluster) -> Iterator[None]:
    for _ in range(3):
        cluster.restart(0, keep_data=True)
        yield


def killed_with_a_snapshot_made_with_a_replica(cluster: LocalCluster) -> Iterator[None]:
    # Such a snapshot names the replication id, so that replicas need no full copy.
    for _ in range(2):
        follow(cluster, 1, leader=0)
        cluster.restart(0, keep_data=True)
        yield


def shut_down_with_a_snapshot(cluster: LocalCluster) -> Iterator[None]:
    for _ in range(2):
        cluster.client(0).shutdown(save=True)
        wait_until(lambda: cluster.state(0) == "dead")
        cluster.restart(0, keep_data=True)
        yield


def demoted_and_promoted(cluster: LocalCluster) -> Iterator[None]:
    for _ in range(2):
        cluster.client(0).replicaof("127.0.0.1", 1)  # nobody listens there
        promote(cluster, 0)
        yield


def a_replica_promoted(cluster: LocalCluster) -> Iterator[None]:
    for _ in range(2):
        follow(cluster, 0, leader=1)
        promote(cluster, 0)
        yield


def a_replica_started_again_as_a_master(cluster: LocalCluster) -> Iterator[None]:
    follow(cluster, 0, leader=1)
    cluster.restart(0, keep_data=True)  # its configuration names no master
    yield


SCENES: list[Scene] = [
    killed_and_empty,
    killed_with_a_snapshot,
    killed_with_a_snapshot_made_with_a_replica,
    shut_down_with_a_snapshot,
    demoted_and_promoted,
    a_replica_promoted,
    a_replica_started_again_as_a_master,
]


def replication_id(cluster: LocalCluster, node: int) -> str:
    return str(cluster.client(node).info("replication")["master_replid"])


@pytest.fixture(params=["servers", "redis-6.2", DEBIAN_PARAM])
def binary(request: pytest.FixtureRequest) -> str | None:
    return binary_of(request.param)


@pytest.fixture
def pair(binary: str | None) -> Iterator[LocalCluster]:
    with LocalCluster(2, binary=binary) as cluster:
        yield cluster


@pytest.mark.parametrize("scene", SCENES)
def test_the_id_is_new_whenever_the_server_may_have_lost_a_key(
    pair: LocalCluster, scene: Scene
) -> None:
    seen = [replication_id(pair, 0), replication_id(pair, 1)]
    for _ in scene(pair):
        assert pair.client(0).info("replication")["role"] == "master"
        seen.append(replication_id(pair, 0))
        assert seen[-1] not in seen[:-1]
        seen.append(replication_id(pair, 1))


def test_the_id_is_new_after_a_start_from_an_append_only_file(binary: str | None) -> None:
    config = {"appendonly": "yes", "appendfsync": "always"}
    with LocalCluster(1, binary=binary, config=config) as cluster:
        cluster.client(0).set("key", "value")
        before = replication_id(cluster, 0)
        cluster.kill(0)
        cluster.restart(0, keep_data=True)
        assert cluster.client(0).get("key") == b"value"
        assert replication_id(cluster, 0) != before


def test_the_id_stays_while_the_server_runs_on(pair: LocalCluster) -> None:
    before = replication_id(pair, 0)
    pair.client(0).set("key", "value")
    pair.client(0).save()
    assert replication_id(pair, 0) == before
