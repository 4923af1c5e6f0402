"""`celery-redlock doctor` on the command line."""

from __future__ import annotations

import pytest

from celery_redlock.testing import LocalCluster
from celery_redlock.testing.plugin import ClusterFactory
from tests.support.command_line import CommandLine, Printed


@pytest.fixture
def healthy(redlock_cluster_factory: ClusterFactory) -> LocalCluster:
    return redlock_cluster_factory(3)


@pytest.fixture
def broken(healthy: LocalCluster) -> LocalCluster:
    """Three nodes of which one does not answer."""
    healthy.kill(1)
    return healthy


def examine(cli: CommandLine, cluster: LocalCluster, *options: str, status: int = 0) -> Printed:
    return cli("doctor", "--nodes", ",".join(cluster.urls), *options, status=status)


def test_every_node_is_a_row(healthy: LocalCluster, cli: CommandLine) -> None:
    rows = examine(cli, healthy).lines
    assert rows[0].split()[0] == "NODE"
    assert [row.split()[0] for row in rows[1:4]] == list(healthy.urls)


def test_a_finding_about_several_nodes_is_printed_once(
    healthy: LocalCluster, cli: CommandLine
) -> None:
    assert examine(cli, healthy).out.count("[persistence-missing]") == 1


def test_an_error_is_named_with_its_node_and_fails_the_command(
    broken: LocalCluster, cli: CommandLine
) -> None:
    printed = examine(cli, broken, status=1)
    assert f"error [node-unreachable] {broken.urls[1]}" in printed.out


def test_json_has_nodes_and_findings(broken: LocalCluster, cli: CommandLine) -> None:
    found = examine(cli, broken, "--json", status=1).json
    assert [node["reachable"] for node in found["nodes"]] == [True, False, True]
    assert {"severity", "node", "code", "message"} == set(found["findings"][0])


def test_new_nodes_are_told_how_to_vote(cli: CommandLine) -> None:
    with LocalCluster(3, armed=False) as cluster:
        assert "celery-redlock init" in examine(cli, cluster, status=1).out
