"""A local cluster breaks its servers as asked, and mends them."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import redis

from celery_redlock.testing import LocalCluster, LocalClusterError
from tests.integration.local_cluster.looks import GUARD, port_of, process_of
from tests.support.waiting import wait_until


def test_a_paused_node_is_stopped_when_pause_returns(cluster: LocalCluster) -> None:
    pid = process_of(cluster, 0)
    cluster.pause(0)
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_command_sent_to_a_paused_node_runs_when_it_resumes(cluster: LocalCluster) -> None:
    with redis.Redis.from_url(cluster.urls[0], socket_timeout=2.0, retry=None) as client:
        client.ping()
        cluster.pause(0)
        with pytest.raises(redis.TimeoutError):
            client.set("key", "late")
    cluster.resume(0)
    wait_until(lambda: cluster.client(0).get("key") == b"late", message="the late command has run")


def test_a_node_can_be_paused_again_after_resuming(cluster: LocalCluster) -> None:
    states = []
    for _ in range(3):
        cluster.pause(0)
        states.append(cluster.state(0))
        cluster.resume(0)
        states.append(cluster.state(0))
    assert states == ["paused", "running"] * 3


def test_a_killed_node_refuses_connections(cluster: LocalCluster) -> None:
    cluster.kill(0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port_of(cluster.urls[0])))


def test_a_paused_node_can_be_killed(cluster: LocalCluster) -> None:
    cluster.pause(0)
    cluster.kill(0)
    assert cluster.state(0) == "dead"


def test_a_node_that_ended_by_itself_is_dead(cluster: LocalCluster) -> None:
    cluster.client(0).shutdown(nosave=True)
    wait_until(lambda: cluster.state(0) == "dead", message="the end is noticed")


def test_a_dead_node_can_be_neither_paused_nor_resumed(cluster: LocalCluster) -> None:
    cluster.kill(0)
    with pytest.raises(LocalClusterError, match="restart it"):
        cluster.pause(0)
    with pytest.raises(LocalClusterError, match="restart it"):
        cluster.resume(0)


def test_a_restarted_node_is_another_server_at_the_same_address(cluster: LocalCluster) -> None:
    url, run_id = cluster.urls[0], cluster.client(0).info("server")["run_id"]
    cluster.restart(0)
    assert cluster.urls[0] == url
    assert cluster.client(0).info("server")["run_id"] != run_id


@pytest.mark.parametrize("before", ["pause", "kill", "resume"])
def test_a_node_restarts_empty(cluster: LocalCluster, before: str) -> None:
    cluster.client(0).set("key", "value")
    getattr(cluster, before)(0)
    cluster.restart(0)
    assert cluster.client(0).keys() == []


@pytest.mark.parametrize("before", ["pause", "resume"])
def test_a_node_restarts_with_its_data_on_request(cluster: LocalCluster, before: str) -> None:
    cluster.client(0).set("key", "value")
    getattr(cluster, before)(0)
    cluster.restart(0, keep_data=True)
    assert cluster.client(0).get("key") == b"value"


def test_a_node_restarts_with_its_data_while_it_writes_a_copy(cluster: LocalCluster) -> None:
    cluster.client(0).set("key", "value")
    cluster.client(0).bgsave()
    cluster.restart(0, keep_data=True)
    assert cluster.client(0).get("key") == b"value"


def test_a_killed_node_comes_back_with_its_last_snapshot(cluster: LocalCluster) -> None:
    cluster.client(0).set("key", "old")
    cluster.client(0).save()
    cluster.client(0).set("key", "new")
    cluster.kill(0)
    cluster.restart(0, keep_data=True)
    assert cluster.client(0).get("key") == b"old"


def test_restarting_does_not_arm_the_guard_again(cluster: LocalCluster) -> None:
    cluster.restart(0)
    assert cluster.client(0).exists(GUARD) == 0


def test_arming_a_node_that_is_dead_says_so(cluster: LocalCluster) -> None:
    cluster.kill(0)
    with pytest.raises(LocalClusterError, match="could not be armed"):
        cluster.arm()


def test_flushing_empties_one_node(cluster: LocalCluster) -> None:
    for index in range(2):
        cluster.client(index).set("key", "value")
    cluster.flush(0)
    assert [cluster.client(i).exists("key") for i in range(2)] == [0, 1]


@pytest.mark.parametrize("harm", ["pause", "kill", "restart", "flush"])
def test_reset_mends(cluster: LocalCluster, harm: str) -> None:
    cluster.client(0).set("key", "value")
    getattr(cluster, harm)(0)
    cluster.reset()
    assert cluster.client(0).keys() == [GUARD.encode()]


def test_reset_makes_a_replica_a_master_again(cluster: LocalCluster) -> None:
    cluster.client(0).replicaof("127.0.0.1", port_of(cluster.urls[1]))
    cluster.reset()
    assert cluster.client(0).info("replication")["role"] == "master"
