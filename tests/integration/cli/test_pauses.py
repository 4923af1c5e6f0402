"""`celery-redlock pause` and `resume` on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from celery_redlock import LockContended, Redlock
from celery_redlock.cli import main
from celery_redlock.testing import LocalCluster
from celery_redlock.testing.plugin import ClusterFactory

NODES = "memory://cli-paused-1,memory://cli-paused-2,memory://cli-paused-3"


@pytest.fixture
def redlock() -> Iterator[Redlock]:
    """A client of nodes on which no key is paused at the end."""
    with Redlock(NODES.split(",")) as redlock:
        yield redlock
        redlock.resume("api")


def run(capsys: pytest.CaptureFixture[str], *command: str, nodes: str = NODES) -> tuple[int, str]:
    status = main([*command, "--nodes", nodes])
    return status, capsys.readouterr().out


def test_a_key_is_paused_and_resumed(redlock: Redlock, capsys: pytest.CaptureFixture[str]) -> None:
    told = "Lock 'api' is paused for 1800 s on 3 of 3 nodes.\n"
    assert run(capsys, "pause", "api", "--for", "30m") == (0, told)
    with pytest.raises(LockContended, match="paused"):
        redlock.acquire("api")
    assert run(capsys, "resume", "api") == (0, "Lock 'api' is not paused any more.\n")
    assert redlock.acquire("api").release()


def test_the_resume_of_a_key_that_was_not_paused_is_told(
    redlock: Redlock, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "resume", "api") == (1, "Lock 'api' was not paused.\n")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("1d", 86_400)]
)
def test_a_time_has_a_unit(
    redlock: Redlock, capsys: pytest.CaptureFixture[str], text: str, seconds: float
) -> None:
    _, printed = run(capsys, "pause", "api", "--for", text, "--json")
    assert json.loads(printed)["seconds"] == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "1w", "soon", "1h30m"])
def test_what_is_no_time_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pause", "api", "--for", text, "--nodes", NODES]) == 2
    assert "is not a time; write 90, 90s, 30m, 2h or 1d" in capsys.readouterr().err


def test_as_json_each_node_has_its_problem(
    redlock: Redlock, capsys: pytest.CaptureFixture[str]
) -> None:
    _, printed = run(capsys, "pause", "api", "--for", "1m", "--json")
    assert json.loads(printed)["problems"] == dict.fromkeys(redlock.node_names)
    _, printed = run(capsys, "resume", "api", "--json")
    assert json.loads(printed) == {"key": "api", "was_paused": True}


def test_a_node_that_is_down_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with LocalCluster(3) as cluster:
        cluster.kill(2)
        assert main(["pause", "api", "--for", "1m", "--nodes", ",".join(cluster.urls)]) == 0
        output = capsys.readouterr()
        assert output.out.endswith("on 2 of 3 nodes.\n")
        assert "may grant the key; pause it again" in output.err


def test_without_a_quorum_it_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with LocalCluster(3) as cluster:
        cluster.kill(1)
        cluster.kill(2)
        assert main(["pause", "api", "--for", "1m", "--nodes", ",".join(cluster.urls)]) == 1
    assert "others may still get it" in capsys.readouterr().err


@pytest.mark.parametrize("slow", [(0,), (0, 1, 2)])
def test_nodes_that_answer_later_than_clients_wait_are_paused(
    redlock_cluster_factory: ClusterFactory,
    capsys: pytest.CaptureFixture[str],
    slow: tuple[int, ...],
) -> None:
    cluster = redlock_cluster_factory(3, proxy=True)
    for node in slow:
        cluster.delay(node, 0.5, only="replies")
    nodes = ",".join(cluster.urls)
    status, printed = run(capsys, "pause", "api", "--for", "1m", "--json", nodes=nodes)
    assert (status, set(json.loads(printed)["problems"].values())) == (0, {None})
    assert run(capsys, "resume", "api", nodes=nodes)[0] == 0
