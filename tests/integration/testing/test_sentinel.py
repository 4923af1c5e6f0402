"""Sentinel groups on this machine fail over as asked, and are mended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_redlock.core import arm_nodes
from celery_redlock.errors import ConfigurationError
from celery_redlock.testing import LocalClusterError, LocalSentinel
from tests.support.waiting import wait_until

DEBIAN_REDIS = "/usr/bin/redis-server"
GUARD = b"redlock-meta:guard"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(None, id="embedded"),
        pytest.param(DEBIAN_REDIS, id="debian", marks=pytest.mark.system),
    ],
)
def shared(request: pytest.FixtureRequest) -> Iterator[LocalSentinel]:
    with LocalSentinel(2, binary=request.param, proxy=True) as groups:
        yield groups


@pytest.fixture
def groups(shared: LocalSentinel) -> LocalSentinel:
    shared.reset()
    return shared


def role(groups: LocalSentinel, group: int, server: int) -> str:
    client: Any = groups.client(group, server)
    return str(client.info("replication")["role"])


def named_by(groups: LocalSentinel, sentinel: int, group: int = 0) -> int:
    """Return the port that a Sentinel names."""
    client: Any = groups.sentinel_client(sentinel)
    return int(client.sentinel_master(groups.name(group))["port"])


def vote_of(groups: LocalSentinel, group: int) -> str:
    """Return what the guard record of a group's master means."""
    (node,) = arm_nodes([groups.server_urls(group)[groups.master(group)]])
    return node.state


def test_each_group_has_one_master_the_first_server(groups: LocalSentinel) -> None:
    roles = [[role(groups, group, server) for server in range(2)] for group in range(2)]
    assert roles == [["master", "slave"]] * 2


def test_each_sentinel_knows_the_others_and_all_replicas(groups: LocalSentinel) -> None:
    for sentinel in range(3):
        client: Any = groups.sentinel_client(sentinel)
        for group in range(2):
            found = client.sentinel_master(groups.name(group))
            assert (found["num-other-sentinels"], found["num-slaves"]) == (2, 1)


def test_a_url_names_all_sentinels_and_the_group(groups: LocalSentinel) -> None:
    hosts = [url.removeprefix("redis://").removesuffix("/0") for url in groups.sentinel_urls]
    assert groups.urls == [f"redis+sentinel://{','.join(hosts)}/locks-{n}" for n in range(2)]


def test_a_client_that_asks_the_sentinels_reaches_the_master(groups: LocalSentinel) -> None:
    groups.client(1, 0).set("key", "value")
    ports = [int(url.rpartition(":")[2].removesuffix("/0")) for url in groups.sentinel_urls]
    asking: Any = redis.Sentinel([("127.0.0.1", port) for port in ports])  # type: ignore[no-untyped-call]
    assert asking.master_for("locks-1").get("key") == b"value"


def test_the_masters_of_fresh_groups_vote(groups: LocalSentinel) -> None:
    assert [vote_of(groups, group) for group in range(2)] == ["serving"] * 2


def test_a_planned_failover_returns_when_all_sentinels_name_the_new_master(
    groups: LocalSentinel,
) -> None:
    before = {named_by(groups, sentinel) for sentinel in range(3)}
    assert groups.fail_over(0) == 1
    after = {named_by(groups, sentinel) for sentinel in range(3)}
    assert len(after) == 1
    assert after != before


def test_a_failover_leaves_other_groups_alone(groups: LocalSentinel) -> None:
    before = named_by(groups, 0, group=1)
    groups.fail_over(0)
    assert (named_by(groups, 0, group=1), groups.master(1)) == (before, 0)


def test_a_promoted_master_does_not_vote_at_once(groups: LocalSentinel) -> None:
    groups.fail_over(0)
    assert vote_of(groups, 0) == "other"


def test_sentinels_replace_a_killed_master(groups: LocalSentinel) -> None:
    groups.kill(0, 0)
    assert groups.wait_for_failover(0, since=0) == 1
    assert role(groups, 0, 1) == "master"


def test_sentinels_replace_a_paused_master_which_believes_to_be_one_when_it_resumes(
    groups: LocalSentinel,
) -> None:
    groups.pause(0, 0)
    groups.wait_for_failover(0, since=0)
    groups.resume(0, 0)
    assert [role(groups, 0, server) for server in range(2)] == ["master", "master"]


def test_of_two_masters_it_is_the_one_that_the_sentinels_name(groups: LocalSentinel) -> None:
    groups.pause(0, 0)
    groups.wait_for_failover(0, since=0)
    groups.resume(0, 0)
    assert groups.master(0) == 1


@pytest.mark.full
def test_a_killed_master_comes_back_as_one_and_is_made_a_replica(groups: LocalSentinel) -> None:
    groups.kill(0, 0)
    groups.wait_for_failover(0, since=0)
    groups.restart(0, 0)
    assert role(groups, 0, 0) == "master"
    wait_until(lambda: is_replica(groups, 0, 0), message="the former master is a replica")


def is_replica(groups: LocalSentinel, group: int, server: int) -> bool:
    try:
        return role(groups, group, server) == "slave"
    except redis.ConnectionError:  # the Sentinels end all connections when they change the role
        return False


def test_a_replica_that_was_promoted_comes_back_as_a_master(groups: LocalSentinel) -> None:
    promoted = groups.fail_over(0)
    groups.restart(0, promoted)
    assert role(groups, 0, promoted) == "master"


def test_a_master_that_is_cut_off_is_replaced_and_takes_writes_on_its_side(
    groups: LocalSentinel,
) -> None:
    groups.cut(0, 0)
    groups.wait_for_failover(0, since=0)
    assert groups.client(0, 0).set("key", "written by the minority")
    assert groups.client(0, 1).get("key") is None


@pytest.mark.full
def test_a_healed_former_master_becomes_a_replica(groups: LocalSentinel) -> None:
    groups.cut(0, 0)
    groups.wait_for_failover(0, since=0)
    groups.heal(0, 0)
    wait_until(lambda: is_replica(groups, 0, 0), message="the former master is a replica")


def test_without_a_majority_of_sentinels_nothing_is_promoted(groups: LocalSentinel) -> None:
    groups.kill_sentinel(0)
    groups.pause_sentinel(1)
    groups.kill(0, 0)
    client: Any = groups.sentinel_client(2)
    wait_until(lambda: client.sentinel_master("locks-0")["is_sdown"], message="it is down")
    with pytest.raises(LocalClusterError, match=r"did not agree on another master .* within 0 s"):
        groups.wait_for_failover(0, since=0, timeout=0)
    with pytest.raises(LocalClusterError, match=r"locks-0 has no master"):
        groups.master(0)


def test_a_paused_sentinel_resumes_with_what_it_knew(groups: LocalSentinel) -> None:
    before = named_by(groups, 2)
    groups.pause_sentinel(2)
    groups.resume_sentinel(2)
    assert named_by(groups, 2) == before


def test_a_sentinel_that_was_killed_during_a_failover_learns_of_it(groups: LocalSentinel) -> None:
    groups.kill_sentinel(2)
    groups.fail_over(0)
    groups.restart_sentinel(2)
    wait_until(lambda: named_by(groups, 2) == named_by(groups, 0), message="it names the master")


def test_a_test_may_break_everything_and_reset_mends_it(groups: LocalSentinel) -> None:
    groups.client(0, 0).set("key", "value")
    groups.fail_over(0)
    groups.kill(1, 1)
    groups.pause_sentinel(0)
    groups.cut(1, 0)
    groups.reset()
    assert [groups.master(group) for group in range(2)] == [0, 0]
    assert [groups.client(group, 0).keys() for group in range(2)] == [[GUARD]] * 2
    assert [vote_of(groups, group) for group in range(2)] == ["serving"] * 2


def test_reset_keeps_servers_that_nothing_has_broken(groups: LocalSentinel) -> None:
    before = groups.server_urls(0)
    groups.client(0, 0).set("key", "value")
    groups.reset()
    assert groups.server_urls(0) == before
    assert groups.client(0, 0).exists("key") == 0


def test_passwords_are_part_of_the_urls_and_of_everything_that_connects() -> None:
    with LocalSentinel(requirepass="p@ss:/ö", sentinel_password="s@:/") as groups:
        (url,) = groups.urls
        assert url.startswith("redis+sentinel://:p%40ss%3A%2F%C3%B6@127.0.0.1:")
        assert url.endswith("/locks-0?sentinel_password=s%40%3A%2F")
        assert groups.fail_over() == 1
        groups.restart_sentinel(0)
        assert named_by(groups, 0) == named_by(groups, 1)
        with (
            redis.Redis.from_url(groups.sentinel_urls[0].replace("s%40%3A%2F", "no")) as stranger,
            pytest.raises(redis.AuthenticationError),
        ):
            stranger.ping()


def test_without_a_proxy_the_sentinels_name_the_server_itself() -> None:
    with LocalSentinel(sentinels=1, armed=False) as groups:
        assert groups.server_urls()[0] == f"redis://127.0.0.1:{named_by(groups, 0)}/0"
        with pytest.raises(ConfigurationError, match=r"start LocalSentinel\(proxy=True\)"):
            groups.cut(0, 0)
        assert vote_of(groups, 0) == "missing"


def test_more_replicas_and_further_configuration() -> None:
    with LocalSentinel(sentinels=1, replicas=2, config={"maxmemory": "10mb"}) as groups:
        found = [groups.client(0, server).config_get("maxmemory") for server in range(3)]
        assert found == [{"maxmemory": str(10 * 2**20)}] * 3
        assert [role(groups, 0, server) for server in range(3)] == ["master", "slave", "slave"]


def test_no_sentinel_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="sentinels=0: give at least 1"):
        LocalSentinel(sentinels=0)


def test_groups_that_are_not_started_say_so() -> None:
    with pytest.raises(LocalClusterError, match="<LocalSentinel of 1 not started>"):
        _ = LocalSentinel().urls


def test_a_server_that_cannot_start_is_reported_with_its_log() -> None:
    with pytest.raises(LocalClusterError, match=r"(?s)server-0 .*no-such-option"):
        LocalSentinel(config={"no-such-option": "1"}).start()


def test_closing_leaves_no_process_and_no_file() -> None:
    with LocalSentinel(sentinels=1, armed=False) as groups:
        clients: list[Any] = [groups.client(0, 0), groups.client(0, 1), groups.sentinel_client(0)]
        pids = [client.info("server")["process_id"] for client in clients]
        directory = Path(clients[0].config_get("dir")["dir"]).parents[1]
        groups.pause_sentinel(0)
        groups.kill(0, 1)
    assert not directory.exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
