"""
What a server shows of its starts and promotions, and of backups, whatever the server.

The restart quarantine stands on these facts (decisions 0023 and 0027), so each sort of server
shows them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from celery_redlock.core import arm_nodes
from celery_redlock.protocol.votes import Granted, Quarantined, Vote
from celery_redlock.testing import LocalCluster
from tests.integration.protocol.conftest import DEBIAN_PARAM, OLDEST_PARAM, binary_of
from tests.support.commands import acquire
from tests.support.nodes import ServerNodes
from tests.support.replication import back_up, follow, free_backlog, promote, replication
from tests.support.waiting import wait_until

#: Does something to the first of two servers, and yields after each step that makes it forget.
Scene = Callable[[LocalCluster], Iterator[None]]


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


def a_replica_of_its_own_replica_promoted(cluster: LocalCluster) -> Iterator[None]:
    # What is copied back names this very process.
    for _ in range(2):
        follow(cluster, 1, leader=0)
        promote(cluster, 1)
        follow(cluster, 0, leader=1)
        promote(cluster, 0)
        yield


def a_replica_started_again_as_a_master(cluster: LocalCluster) -> Iterator[None]:
    follow(cluster, 0, leader=1)
    cluster.restart(0, keep_data=True)  # its configuration names no master
    yield


PROMOTIONS: list[Scene] = [
    demoted_and_promoted,
    a_replica_promoted,
    a_replica_of_its_own_replica_promoted,
]

SCENES: list[Scene] = [
    killed_and_empty,
    killed_with_a_snapshot,
    killed_with_a_snapshot_made_with_a_replica,
    shut_down_with_a_snapshot,
    a_replica_started_again_as_a_master,
    *PROMOTIONS,
]


def a_backup(cluster: LocalCluster) -> Iterator[None]:
    back_up(cluster, 0)
    yield


def a_backlog_freed(cluster: LocalCluster) -> Iterator[None]:
    for _ in range(2):
        back_up(cluster, 0)
        free_backlog(cluster, 0)
        yield


def a_first_replica(cluster: LocalCluster) -> Iterator[None]:
    follow(cluster, 1, leader=0)
    yield


#: What renews the replication id of a server that loses nothing.
HARMLESS: list[Scene] = [a_backup, a_backlog_freed, a_first_replica]


def replication_id(cluster: LocalCluster, node: int) -> str:
    return str(replication(cluster, node)["master_replid"])


def asked(cluster: LocalCluster, quarantine_ms: int = 60_000) -> Vote:
    """Return the vote of the first server on a key of its own."""
    command = acquire((uuid.uuid4().hex,), "somebody", 1000, 0, quarantine_ms)
    return ServerNodes(cluster).run(0, command)


def armed_state(cluster: LocalCluster) -> str:
    (result, *_) = arm_nodes(cluster.urls)
    return result.state


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


@pytest.mark.parametrize("scene", HARMLESS)
def test_the_id_is_new_without_a_loss_and_nothing_else_is(pair: LocalCluster, scene: Scene) -> None:
    run_id, seen = pair.client(0).info("server")["run_id"], [replication_id(pair, 0)]
    for _ in scene(pair):
        shown = replication(pair, 0)
        assert shown["master_replid"] not in seen
        assert (shown["role"], shown["master_replid2"]) == ("master", 0)  # forty zeros
        assert pair.client(0).info("server")["run_id"] == run_id
        seen.append(shown["master_replid"])


#: What follows from the ids, the oldest server shows in `make test-full`.
follows_from_the_ids = pytest.mark.parametrize(
    "binary", ["servers", OLDEST_PARAM, DEBIAN_PARAM], indirect=True
)


@follows_from_the_ids
@pytest.mark.parametrize("scene", HARMLESS)
def test_a_node_that_has_lost_nothing_votes(pair: LocalCluster, scene: Scene) -> None:
    for _ in scene(pair):
        assert armed_state(pair) == "serving"
        assert isinstance(asked(pair), Granted)
        assert armed_state(pair) == "serving"


@follows_from_the_ids
@pytest.mark.parametrize("scene", PROMOTIONS)
def test_a_process_that_was_promoted_is_quarantined(pair: LocalCluster, scene: Scene) -> None:
    for _ in scene(pair):
        assert armed_state(pair) == "other"
        assert isinstance(asked(pair), Quarantined)
        arm_nodes(pair.urls[:1], force=True)


@follows_from_the_ids
def test_a_replica_that_takes_writes_does_not_vote(pair: LocalCluster) -> None:
    pair.client(0).config_set("replica-read-only", "no")
    back_up(pair, 1)
    arm_nodes(pair.urls[1:], force=True)
    follow(pair, 0, leader=1)  # with a record that names the id of both
    assert isinstance(asked(pair), Quarantined)


@follows_from_the_ids
def test_a_quarantine_lasts_on_when_the_id_is_new_without_a_loss(pair: LocalCluster) -> None:
    pair.flush(0)
    assert isinstance(asked(pair, 600_000), Quarantined)
    back_up(pair, 0)
    assert armed_state(pair).startswith("quarantined")
    left = asked(pair, 600_000)
    assert isinstance(left, Quarantined)
    assert left.remaining < 600.0  # it did not begin anew


@follows_from_the_ids
def test_a_node_that_was_promoted_votes_on_when_its_backlog_is_freed(pair: LocalCluster) -> None:
    for _ in demoted_and_promoted(pair):
        assert isinstance(asked(pair, 1), Quarantined)
    wait_until(lambda: isinstance(asked(pair), Granted))
    free_backlog(pair, 0)
    assert isinstance(asked(pair), Granted)
