"""`celery-redlock watch` on a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from collections.abc import Iterator

import pytest

from celery_redlock import Redlock
from celery_redlock.cli import main
from celery_redlock.testing import LocalCluster
from tests.support.waiting import wait_until


class Screen:
    """A terminal on which the command runs, and all that it has printed."""

    def __init__(self, nodes: LocalCluster) -> None:
        self._own, theirs = pty.openpty()
        os.set_blocking(self._own, False)
        self.printed = ""
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery_redlock", "watch", "--every=0.1"),
                *("--nodes", ",".join(nodes.urls)),
            ],
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

    def press(self, key: str) -> None:
        os.write(self._own, key.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._own)


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3) as cluster:
        yield cluster


@pytest.fixture
def screen(cluster: LocalCluster) -> Iterator[Screen]:
    screen = Screen(cluster)
    yield screen
    screen.close()


def test_a_lock_that_is_taken_appears(cluster: LocalCluster, screen: Screen) -> None:
    wait_until(lambda: screen.shows("0 locks"))
    with Redlock(cluster.urls) as redlock, redlock.lock("report"):
        wait_until(lambda: screen.shows("report"))


def test_a_node_that_fails_appears(cluster: LocalCluster, screen: Screen) -> None:
    wait_until(lambda: screen.shows("nothing is wrong"))
    cluster.kill(0)
    wait_until(lambda: screen.shows("node-unreachable"))


def test_it_goes_on_without_a_quorum(cluster: LocalCluster, screen: Screen) -> None:
    wait_until(lambda: screen.shows("0 locks"))
    cluster.kill(0)
    cluster.kill(1)
    wait_until(lambda: screen.shows("The locks are not known"))
    assert screen.process.poll() is None


def test_q_ends_it(screen: Screen) -> None:
    wait_until(lambda: screen.shows("0 locks"))
    screen.press("q")
    wait_until(lambda: screen.shows("") or screen.process.poll() == 0)


def test_without_a_terminal_it_names_the_command_for_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["watch", "--nodes", "memory://watch"]) == 2
    assert "list --json" in capsys.readouterr().err
