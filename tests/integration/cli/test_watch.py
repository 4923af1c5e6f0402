"""`celery-redlock watch` on a terminal, and as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_redlock import Redlock
from celery_redlock.testing import LocalCluster
from celery_redlock.testing.plugin import ClusterFactory
from tests.support import forked
from tests.support.command_line import CommandLine
from tests.support.nodes import CALM
from tests.support.waiting import TIMEOUT, wait_until


class Watching:
    """A terminal on which the command runs, and all that it has printed."""

    def __init__(self, nodes: LocalCluster) -> None:
        self._own, theirs = pty.openpty()
        os.set_blocking(self._own, False)
        self.printed = ""
        self.process = forked.start(
            *("-m", "celery_redlock", "watch", "--every=0.1", "--nodes", ",".join(nodes.urls)),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "200", "LINES": "40"},
        )
        os.close(theirs)

    def shows(self, text: str) -> bool:
        with contextlib.suppress(OSError):
            self.printed += os.read(self._own, 65536).decode(errors="replace")
        return text in self.printed

    def has_ended(self) -> bool:
        """Read its output, without which it may not end; return whether it ended with status 0."""
        self.shows("")
        return self.process.poll() == 0

    def press(self, key: str) -> None:
        os.write(self._own, key.encode())

    def close(self) -> None:
        self.process.end()
        os.close(self._own)


@contextlib.contextmanager
def looks(nodes: LocalCluster, text: str) -> Iterator[Iterator[str]]:
    """Give the lines of the command that prints JSON."""
    command = ("-m", "celery_redlock", "watch", text, "--json", "--every=0.1")
    with forked.reading(*command, "--nodes", ",".join(nodes.urls)) as (process, printed):
        yield iter(printed)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0


def client(cluster: LocalCluster) -> Redlock:
    return Redlock(cluster.urls, node_timeout=CALM)


@pytest.fixture
def cluster(redlock_cluster_factory: ClusterFactory) -> LocalCluster:
    return redlock_cluster_factory(3)


@pytest.fixture
def screen(cluster: LocalCluster) -> Iterator[Watching]:
    screen = Watching(cluster)
    yield screen
    screen.close()


def test_a_lock_that_is_taken_appears(cluster: LocalCluster, screen: Watching) -> None:
    wait_until(lambda: screen.shows("Held: 0"))
    with client(cluster) as redlock, redlock.lock("report"):
        wait_until(lambda: screen.shows("report"))


def test_a_node_that_fails_appears(cluster: LocalCluster, screen: Watching) -> None:
    wait_until(lambda: screen.shows("nothing is wrong"))
    cluster.kill(0)
    wait_until(lambda: screen.shows("node-unreachable"))


def test_it_goes_on_without_a_quorum(cluster: LocalCluster, screen: Watching) -> None:
    wait_until(lambda: screen.shows("Held: 0"))
    cluster.kill(0)
    cluster.kill(1)
    wait_until(lambda: screen.shows("The locks are not known"))
    assert screen.process.poll() is None


def test_a_lock_is_shown_with_how_many_wait(cluster: LocalCluster, screen: Watching) -> None:
    with client(cluster) as redlock, redlock.lock("report"), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(redlock.acquire, "report", wait=TIMEOUT)
        wait_until(lambda: screen.shows("Waiting: 1 for 1 key."))
        redlock.force_release("report")
        waiting.result().release()


def test_a_change_is_noted(cluster: LocalCluster, screen: Watching) -> None:
    wait_until(lambda: screen.shows("Held: 0"))
    with client(cluster) as redlock, redlock.lock("report"):
        wait_until(lambda: screen.shows("report  acquired"))


def test_q_ends_it(screen: Watching) -> None:
    wait_until(lambda: screen.shows("Held: 0"))
    screen.press("q")
    wait_until(screen.has_ended)


def test_q_ends_it_although_another_key_was_typed_before(screen: Watching) -> None:
    wait_until(lambda: screen.shows("Held: 0"))
    screen.press("xq")
    wait_until(screen.has_ended)


def test_ctrl_c_ends_it(screen: Watching) -> None:
    wait_until(lambda: screen.shows("Held: 0"))
    screen.process.send_signal(signal.SIGINT)
    wait_until(screen.has_ended)


def test_without_a_terminal_it_names_the_option_for_programs(cli: CommandLine) -> None:
    assert "--json" in cli("watch", "--nodes", "memory://watch", status=2).err


def test_json_is_one_line_for_each_look(cluster: LocalCluster) -> None:
    with client(cluster) as redlock, redlock.lock("report"), looks(cluster, "rep") as lines:
        first, second = json.loads(next(lines)), json.loads(next(lines))
    assert [group["key"] for group in first["locks"]["keys"]] == ["report"]
    assert first["at"] < second["at"]


def test_a_filter_hides_other_locks(cluster: LocalCluster) -> None:
    with client(cluster) as redlock, redlock.lock("report"), looks(cluster, "bill") as lines:
        assert json.loads(next(lines))["locks"]["found"] == 0
