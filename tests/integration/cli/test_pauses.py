"""`celery-redlock pause` and `resume` on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from celery_redlock import LockContended, Redlock
from celery_redlock.testing import LocalCluster
from celery_redlock.testing.plugin import ClusterFactory
from tests.support.command_line import CommandLine

NODES = "memory://cli-paused-1,memory://cli-paused-2,memory://cli-paused-3"


@pytest.fixture
def redlock() -> Iterator[Redlock]:
    """A client of nodes on which no key is paused at the end."""
    with Redlock(NODES.split(",")) as redlock:
        yield redlock
        redlock.resume("api")


@pytest.fixture
def run(cli: CommandLine) -> CommandLine:
    return partial(cli, "--nodes", NODES)


def test_a_key_is_paused_and_resumed(redlock: Redlock, run: CommandLine) -> None:
    told = "Lock 'api' is paused for 1800 s on 3 of 3 nodes.\n"
    assert run("pause", "api", "--for", "30m").out == told
    with pytest.raises(LockContended, match="paused"):
        redlock.acquire("api")
    assert run("resume", "api").out == "Lock 'api' is not paused any more.\n"
    assert redlock.acquire("api").release()


def test_the_resume_of_a_key_that_was_not_paused_is_told(run: CommandLine) -> None:
    assert run("resume", "api", status=1).out == "Lock 'api' was not paused.\n"


def test_a_release_of_a_paused_key_names_the_command_that_ends_the_pause(
    redlock: Redlock, run: CommandLine
) -> None:
    redlock.pause("api", 60)
    printed = run("release", "api", "--yes", status=1)
    assert printed.out == "No lock was released.\n"
    assert "celery-redlock resume" in printed.err


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("1d", 86_400)]
)
def test_a_time_has_a_unit(redlock: Redlock, run: CommandLine, text: str, seconds: float) -> None:
    assert run("pause", "api", "--for", text, "--json").json["seconds"] == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "1w", "soon", "1h30m"])
def test_what_is_no_time_is_refused(text: str, run: CommandLine) -> None:
    printed = run("pause", "api", "--for", text, status=2)
    assert "is not a time; write 90, 90s, 30m, 2h or 1d" in printed.err


def test_as_json_each_node_has_its_problem(redlock: Redlock, run: CommandLine) -> None:
    paused = run("pause", "api", "--for", "1m", "--json").json
    assert paused["problems"] == dict.fromkeys(redlock.node_names)
    assert run("resume", "api", "--json").json == {"key": "api", "was_paused": True}


def test_a_node_that_is_down_is_named(cli: CommandLine) -> None:
    with LocalCluster(3) as cluster:
        cluster.kill(2)
        printed = cli("pause", "api", "--for", "1m", "--nodes", ",".join(cluster.urls))
    assert printed.out.endswith("on 2 of 3 nodes.\n")
    assert "may grant the key; pause it again" in printed.err


def test_without_a_quorum_it_fails(cli: CommandLine) -> None:
    with LocalCluster(3) as cluster:
        cluster.kill(1)
        cluster.kill(2)
        printed = cli("pause", "api", "--for", "1m", "--nodes", ",".join(cluster.urls), status=1)
    assert "others may still get it" in printed.err


@pytest.mark.parametrize("slow", [(0,), (0, 1, 2)])
def test_nodes_that_answer_later_than_clients_wait_are_paused(
    redlock_cluster_factory: ClusterFactory, cli: CommandLine, slow: tuple[int, ...]
) -> None:
    cluster = redlock_cluster_factory(3, proxy=True)
    for node in slow:
        cluster.delay(node, 0.5, only="replies")
    run = partial(cli, "--nodes", ",".join(cluster.urls))
    paused = run("pause", "api", "--for", "1m", "--json").json
    assert set(paused["problems"].values()) == {None}
    run("resume", "api")
