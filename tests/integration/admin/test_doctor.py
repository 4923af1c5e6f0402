"""Faults of real nodes are found and named, and asking changes nothing on the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from celery_redlock import QuorumUnavailable, Redlock
from celery_redlock.admin.diagnosis import Finding, Severity, diagnose
from celery_redlock.admin.node_report import FailureKind, Guard, NodeReport, report_nodes
from celery_redlock.admin.rights import WAKE_RIGHTS, rights
from celery_redlock.core import arm_nodes
from celery_redlock.tasks.config.settings import RedlockSettings
from celery_redlock.testing import LocalCluster
from celery_redlock.testing.plugin import ClusterFactory
from tests.integration.protocol.conftest import DEBIAN_PARAM, binary_of
from tests.support.replication import back_up, promote
from tests.support.waiting import TIMEOUT, wait_until

MAX_TTL = 60.0
PASSWORD = "hunter2"
# On a busy machine: only a node that is slow on purpose is used up to it.
CALM = 10.0

SERVERS = ["servers", "redis-6.2", DEBIAN_PARAM]

TRIED = rights("redlock:")
NAMES = list(dict.fromkeys(name for right in TRIED for name in (right.name, right.place)))


def diagnosed(urls: Sequence[str], timeout: float = CALM) -> tuple[Finding, ...]:
    """Return all findings but for how long nodes take."""
    settings = RedlockSettings(max_ttl=MAX_TTL, node_timeout=CALM)
    return diagnose(report_nodes(urls, timeout=timeout), settings)


def named(urls: Sequence[str], timeout: float = CALM) -> list[tuple[int | None, str, Severity]]:
    """Return what is found above info: the number of the node, the code and the severity."""
    places = {url: place for place, url in enumerate(urls)} | {None: None}
    shown = {f"redis://{urlsplit(url).netloc.rpartition('@')[2]}/0": url for url in urls}
    return [
        (places[shown.get(one.node or "")], one.code, one.severity)
        for one in diagnosed(urls, timeout)
        if one.severity is not Severity.INFO
    ]


def port(cluster: LocalCluster, index: int) -> int:
    return urlsplit(cluster.server_urls[index]).port or 0


def define_user(cluster: LocalCluster, *rules: str) -> list[str]:
    """Define a user on all nodes and return URLs with it."""
    for index in range(len(cluster)):
        cluster.client(index).execute_command(
            "ACL", "SETUSER", "doctor", "reset", "on", f">{PASSWORD}", *rules
        )
    return [url.replace("redis://", f"redis://doctor:{PASSWORD}@") for url in cluster.urls]


@pytest.mark.parametrize("kind", SERVERS)
def test_nothing_above_info_is_found_in_five_nodes_that_vote(
    kind: str, redlock_cluster_factory: ClusterFactory
) -> None:
    cluster = redlock_cluster_factory(5, binary=binary_of(kind))
    found = diagnosed(cluster.urls)

    assert [one for one in found if one.severity is not Severity.INFO] == []
    assert {one.code for one in found} == {"persistence-missing"}


@pytest.mark.parametrize(("kind", "server"), [("servers", "valkey"), ("redis-6.2", "redis")])
def test_facts_are_those_that_the_server_shows(
    kind: str, server: str, redlock_cluster_factory: ClusterFactory
) -> None:
    cluster = redlock_cluster_factory(3, binary=binary_of(kind))
    info = cluster.client(1).info()
    (_, one, _) = report_nodes(cluster.urls, timeout=CALM)

    assert one == NodeReport(
        url=f"redis://127.0.0.1:{port(cluster, 1)}/0",
        latency=one.latency,
        role="master",
        server=server,
        version=info.get("valkey_version", info["redis_version"]),
        run_id=info["run_id"],
        uptime=one.uptime,
        persistence="none",
        maxmemory=0,
        maxmemory_policy="noeviction",
        backlog_ttl=3600,
        is_replicated=False,
        replicas=0,
        min_replicas=0,
        guard=Guard.SERVING,
        clock_skew=one.clock_skew,
        skew_from_nodes=one.skew_from_nodes,
        missing_rights=(),
    )
    assert 0 < (one.latency or 0.0) < CALM
    assert (one.uptime or 0) >= info["uptime_in_seconds"]
    assert one.clock_skew == pytest.approx(0.0, abs=0.5)
    assert one.skew_from_nodes == pytest.approx(0.0, abs=0.5)


def test_four_broken_nodes_of_five_are_named_and_nothing_else(
    redlock_cluster: LocalCluster, redlock_cluster_factory: ClusterFactory
) -> None:
    other = redlock_cluster_factory(1)
    redlock_cluster.kill(0)
    redlock_cluster.restart(1)
    redlock_cluster.client(2).config_set("maxmemory-policy", "allkeys-lru")
    redlock_cluster.client(3).replicaof("127.0.0.1", port(other, 0))
    try:
        assert named(redlock_cluster.urls) == [
            (0, "node-unreachable", Severity.ERROR),
            (2, "evicting-policy", Severity.ERROR),
            (3, "replica", Severity.ERROR),
            (None, "quorum-margin", Severity.ERROR),
            (1, "restarted", Severity.WARNING),
        ]
    finally:
        redlock_cluster.client(2).config_set("maxmemory-policy", "noeviction")


@pytest.mark.parametrize("keep_data", [False, True])
def test_a_node_that_restarted_is_quarantined_from_the_next_acquire_on(
    redlock_cluster: LocalCluster, keep_data: bool
) -> None:
    redlock_cluster.restart(0, keep_data=keep_data)
    assert named(redlock_cluster.urls) == [(0, "restarted", Severity.WARNING)]

    with Redlock(redlock_cluster.urls, max_ttl=MAX_TTL, node_timeout=CALM) as redlock:

        def is_quarantined() -> bool:
            redlock.acquire("key").release()
            return named(redlock_cluster.urls) == [(0, "quarantined", Severity.WARNING)]

        wait_until(is_quarantined, TIMEOUT, message="the node to begin its quarantine")
    (report, *_) = report_nodes(redlock_cluster.urls, timeout=CALM)
    assert MAX_TTL / 2 < (report.quarantine_left or 0.0) <= MAX_TTL


@pytest.mark.parametrize("kind", SERVERS)
def test_nothing_is_found_when_a_backup_attaches(
    kind: str, redlock_cluster_factory: ClusterFactory
) -> None:
    cluster = redlock_cluster_factory(3, binary=binary_of(kind))
    for index in range(3):
        back_up(cluster, index)
    assert named(cluster.urls) == []


def test_a_backlog_that_is_freed_within_a_longest_lease_is_named() -> None:
    with LocalCluster(3, config={"repl-backlog-ttl": 59}) as cluster:
        found = [(code, severity) for _, code, severity in named(cluster.urls)]
    assert found == [("backlog-ttl-short", Severity.WARNING)] * 3


def test_the_right_to_see_a_promoted_node_s_backlog_ttl_is_named(
    redlock_cluster: LocalCluster,
) -> None:
    redlock_cluster.client(0).replicaof("127.0.0.1", 1)  # nobody listens there
    promote(redlock_cluster, 0)
    urls = define_user(redlock_cluster, "~*", "&*", "+@all", "-config")
    (first, *_) = report_nodes(urls, timeout=CALM)
    found = [one for one in diagnosed(urls) if one.code == "backlog-ttl-hidden"]
    assert first.url in {one.node for one in found}
    assert "Grant +config|get" in found[0].message


def test_a_quarantine_longer_than_ours_shows_that_another_process_has_a_longer_max_ttl(
    redlock_cluster: LocalCluster,
) -> None:
    for index in range(5):
        redlock_cluster.flush(index)
    with (
        Redlock(redlock_cluster.urls, max_ttl=10 * MAX_TTL, node_timeout=CALM) as redlock,
        pytest.raises(QuorumUnavailable),
    ):
        redlock.acquire("key")

    found = {one[1] for one in named(redlock_cluster.urls)}
    assert (
        {"max-ttl-differs", "quorum-margin"}
        <= found
        <= {"max-ttl-differs", "quorum-margin", "restarted"}
    )


def test_new_nodes_are_to_be_armed(redlock_cluster: LocalCluster) -> None:
    for index in range(5):
        redlock_cluster.flush(index)
    assert {one[1] for one in named(redlock_cluster.urls)} == {"never-armed", "quorum-margin"}

    arm_nodes(redlock_cluster.urls)
    assert named(redlock_cluster.urls) == []


def test_a_frozen_node_is_found_within_the_timeout(
    redlock_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    redlock_cluster.pause(0)
    read, waited = redis.Connection.read_response, []

    def count(connection: Any, *args: Any, **options: Any) -> Any:
        try:
            return read(connection, *args, **options)
        except redis.TimeoutError:
            waited.append(connection.socket_timeout)
            raise

    monkeypatch.setattr(redis.Connection, "read_response", count)

    assert named(redlock_cluster.urls, 3.0) == [(0, "node-unreachable", Severity.ERROR)]
    assert waited == [3.0]


@pytest.mark.parametrize("redlock_cluster", [{"proxy": True}], indirect=True)
def test_a_server_that_answers_garbage_is_no_lock_node(redlock_cluster: LocalCluster) -> None:
    redlock_cluster.garbage(4)

    assert named(redlock_cluster.urls) == [(4, "node-unreachable", Severity.ERROR)]
    (found, *_) = diagnosed(redlock_cluster.urls)
    assert "garbage" in found.message


def test_a_wrong_password_is_a_lasting_failure_and_is_not_shown(
    redlock_cluster: LocalCluster,
) -> None:
    urls = list(redlock_cluster.urls)
    urls[1] = urls[1].replace("redis://", "redis://locks:wrong-secret@")

    assert named(urls) == [(1, "no-login", Severity.ERROR)]
    reports = report_nodes(urls, timeout=CALM)
    assert reports[1].failure is not None
    assert reports[1].failure.kind is FailureKind.LOGIN
    assert "wrong-secret" not in f"{reports}{diagnosed(urls)}"


def test_a_password_that_is_left_out_is_asked_for() -> None:
    with LocalCluster(1, requirepass=PASSWORD) as cluster:
        url = cluster.urls[0].replace(f":{PASSWORD}@", "")

        assert named([url]) == [
            (0, "no-login", Severity.ERROR),
            (None, "quorum-margin", Severity.ERROR),
        ]
        assert PASSWORD not in f"{report_nodes(cluster.urls)}"


def test_a_cluster_node_cannot_be_used_as_it_is_set_up() -> None:
    with LocalCluster(1, config={"cluster-enabled": "yes"}, armed=False) as cluster:
        assert named(cluster.urls)[0] == (0, "node-unusable", Severity.ERROR)


def test_one_server_under_two_addresses_is_found(redlock_cluster: LocalCluster) -> None:
    urls = [*redlock_cluster.urls[:4], redlock_cluster.urls[0].replace("127.0.0.1", "localhost")]

    assert named(urls) == [(4, "same-server-twice", Severity.ERROR)]


def test_a_node_whose_memory_is_full_refuses_writes(redlock_cluster: LocalCluster) -> None:
    redlock_cluster.client(0).config_set("maxmemory", "1")
    try:
        assert named(redlock_cluster.urls) == [(0, "refuses-writes", Severity.ERROR)]
    finally:
        redlock_cluster.client(0).config_set("maxmemory", "0")


@pytest.mark.parametrize(
    ("appendonly", "save", "persistence"),
    [("no", "", "none"), ("yes", "", "aof"), ("no", "60 1", "rdb"), ("yes", "60 1", "aof+rdb")],
)
def test_persistence_is_what_the_server_is_set_to(
    redlock_cluster: LocalCluster, appendonly: str, save: str, persistence: str
) -> None:
    client = redlock_cluster.client(0)
    client.config_set("appendonly", appendonly)
    client.config_set("save", save)
    try:
        (report, *_) = report_nodes(redlock_cluster.urls, timeout=CALM)
        assert report.persistence == persistence
    finally:
        client.config_set("appendonly", "no")
        client.config_set("save", "")


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("right", NAMES)
def test_a_right_that_is_missing_is_named(
    kind: str, right: str, redlock_cluster_factory: ClusterFactory
) -> None:
    cluster = redlock_cluster_factory(1, binary=binary_of(kind))
    urls = define_user(cluster, "resetchannels", *(name for name in NAMES if name != right))

    (report,) = report_nodes(urls, timeout=CALM)
    assert report.failure is None
    assert report.missing_rights == (right,)


def test_rights_for_wake_ups_alone_are_a_warning(redlock_cluster_factory: ClusterFactory) -> None:
    cluster = redlock_cluster_factory(3)
    urls = define_user(
        cluster, "resetchannels", *(name for name in NAMES if name not in WAKE_RIGHTS)
    )

    assert named(urls) == [
        (index, "wake-rights-missing", Severity.WARNING) for index in range(len(urls))
    ]


def test_the_user_of_the_containers_lacks_nothing(redlock_cluster_factory: ClusterFactory) -> None:
    urls = define_user(redlock_cluster_factory(3), "resetchannels", *NAMES)

    assert named(urls) == []


def test_a_user_that_may_do_nothing_is_one_finding(redlock_cluster: LocalCluster) -> None:
    urls = list(redlock_cluster.urls)
    urls[2] = define_user(redlock_cluster, "resetchannels", "-@all")[2]

    assert named(urls) == [(2, "rights-missing", Severity.ERROR)]


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("is_armed", [True, False])
def test_asking_changes_nothing_on_a_node(
    kind: str, is_armed: bool, redlock_cluster_factory: ClusterFactory
) -> None:
    cluster = redlock_cluster_factory(1, binary=binary_of(kind))
    client = cluster.client(0)
    if not is_armed:
        cluster.flush(0)
    client.set("redlock:doctor", "the lock of a user", px=600_000)
    client.script_flush()
    before = contents(client)

    report_nodes(cluster.urls, timeout=CALM)
    assert contents(client) == before
    assert client.info("memory")["number_of_cached_scripts"] == 1


def contents(client: Any) -> tuple[Any, ...]:
    """All keys and settings of a server, and how often it was written to."""
    keys = sorted(client.keys("*"))
    return (
        {key: client.dump(key) for key in keys},
        client.config_get("*"),
        client.acl_list(),
        client.info("persistence")["rdb_changes_since_last_save"],
    )
