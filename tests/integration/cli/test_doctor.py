"""`celery-redlock doctor` on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from celery_redlock.cli import main
from celery_redlock.testing import LocalCluster


@pytest.fixture(scope="module")
def healthy() -> Iterator[LocalCluster]:
    with LocalCluster(3) as cluster:
        yield cluster


@pytest.fixture
def broken() -> Iterator[LocalCluster]:
    """Three nodes of which one does not answer."""
    with LocalCluster(3) as cluster:
        cluster.kill(1)
        yield cluster


def examine(cluster: LocalCluster, *options: str) -> int:
    return main(["doctor", "--nodes", ",".join(cluster.urls), *options])


def test_every_node_is_a_row(healthy: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert examine(healthy) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].split()[0] == "NODE"
    assert [row.split()[0] for row in rows[1:4]] == list(healthy.urls)


def test_a_finding_about_several_nodes_is_printed_once(
    healthy: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    examine(healthy)
    assert capsys.readouterr().out.count("[persistence-missing]") == 1


def test_an_error_is_named_with_its_node_and_fails_the_command(
    broken: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert examine(broken) == 1
    assert f"error [node-unreachable] {broken.urls[1]}" in capsys.readouterr().out


def test_json_has_nodes_and_findings(
    broken: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert examine(broken, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert [node["reachable"] for node in found["nodes"]] == [True, False, True]
    assert {"severity", "node", "code", "message"} == set(found["findings"][0])


def test_new_nodes_are_told_how_to_vote(capsys: pytest.CaptureFixture[str]) -> None:
    with LocalCluster(3, armed=False) as cluster:
        examine(cluster)
    assert "celery-redlock init" in capsys.readouterr().out
