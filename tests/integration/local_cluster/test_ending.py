"""A local cluster leaves nothing behind, whatever becomes of its process."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celery_redlock.testing import LocalCluster
from tests.integration.local_cluster.looks import process_of
from tests.support.leaks import nothing_left
from tests.support.waiting import TIMEOUT, wait_until


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
    with nothing_left(), LocalCluster(2, proxy=True, unix_socket=True) as cluster:
        directory = directory_of(cluster, 0)
        assert directory.is_dir()
        cluster.restart(1)
    assert not directory.exists()


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
        wait_until(lambda: all(map(is_gone, self.pids)), message="the servers have ended")
        wait_until(lambda: not self.directory.exists(), message="the directory is removed")

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
    owner.process.wait(TIMEOUT)
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


def test_a_forked_child_can_use_the_servers_but_not_break_them(own: Callable[[str], Owner]) -> None:
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
    assert re.fullmatch(r"<LocalCluster of 2 .*> belongs to process \d+: .*", owner.line())


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
