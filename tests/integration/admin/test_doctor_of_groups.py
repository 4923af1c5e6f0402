"""Faults of real Sentinel groups are found and named."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.admin.diagnosis import Finding, Severity, diagnose
from celery_redlock.admin.node_report import FailureKind, report_nodes
from celery_redlock.tasks.config.settings import RedlockSettings
from celery_redlock.testing import LocalSentinel
from tests.support.waiting import wait_until

# On a busy machine: only a node that is slow on purpose is used up to it.
CALM = 10.0
#: Of a command that waits for a Sentinel that never answers.
SHORT = 1.0


@pytest.fixture
def groups(redlock_sentinel: LocalSentinel) -> LocalSentinel:
    return redlock_sentinel


def found(groups: LocalSentinel, urls: list[str] | None = None, **settings: Any) -> list[Finding]:
    """Return what is found above info, but for how long nodes take."""
    reports = report_nodes(urls or groups.urls, timeout=SHORT)
    every = diagnose(reports, RedlockSettings(**{"node_timeout": CALM, **settings}))
    return [one for one in every if one.severity is not Severity.INFO]


def codes(findings: list[Finding]) -> list[str]:
    return [one.code for one in findings]


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


def named(groups: LocalSentinel, *indices: int) -> str:
    """Return the URL of group 0 with some of its Sentinels."""
    hosts = [f"127.0.0.1:{port_of(groups.sentinel_urls[index])}" for index in indices]
    return f"redis+sentinel://{','.join(hosts)}/{groups.name(0)}"


def test_nothing_above_info_is_found_in_three_groups_that_vote(groups: LocalSentinel) -> None:
    assert found(groups) == []


def test_the_facts_are_those_of_the_master_and_its_sentinels(groups: LocalSentinel) -> None:
    (report,) = report_nodes([groups.urls[0]], timeout=SHORT)
    assert (report.url, report.role, report.replicas) == (groups.urls[0], "master", 1)
    sentinels = report.sentinels
    assert sentinels is not None
    assert (sentinels.named, sentinels.known, sentinels.silent) == (3, 3, ())
    assert sentinels.agree


def test_a_sentinel_that_is_gone_is_named_with_the_reason(groups: LocalSentinel) -> None:
    groups.kill_sentinel(1)
    (one,) = found(groups, [groups.urls[0]], guard=True)
    assert one.code == "sentinel-silent"
    assert f"127.0.0.1:{port_of(groups.sentinel_urls[1])} ConnectionError" in one.message


def test_sentinels_that_the_url_does_not_name_are_missed(groups: LocalSentinel) -> None:
    (few, unnamed) = found(groups, [named(groups, 0, 1)], guard=True)
    assert codes([few, unnamed]) == ["sentinels-few", "sentinels-unnamed"]
    assert "know of 3 Sentinels, and the URL names 2" in unnamed.message


def test_a_server_that_is_named_as_a_sentinel_is_no_sentinel(groups: LocalSentinel) -> None:
    url = named(groups, 0, 1).replace(
        "/locks", f",127.0.0.1:{port_of(groups.server_urls()[0])}/locks"
    )
    (silent,) = found(groups, [url], guard=True)
    assert "is not a Sentinel; name the Sentinels' ports" in silent.message


def test_a_group_without_replicas_cannot_fail_over(groups: LocalSentinel) -> None:
    groups.kill(0, 1)
    wait_until(lambda: "replicas-missing" in codes(found(groups)))


def test_a_promoted_master_is_quarantined_for_longer_by_the_takeover(
    groups: LocalSentinel,
) -> None:
    groups.fail_over(0)
    wait_until(lambda: groups.client(0, groups.master(0)).info("replication")["connected_slaves"])
    restarted = [one for one in found(groups) if one.code == "restarted"]
    assert [one.node for one in restarted] == [groups.urls[0]]
    assert "its quarantine of 90 s" in restarted[0].message


def test_a_name_that_no_sentinel_knows_is_a_fault_of_the_url(groups: LocalSentinel) -> None:
    (report,) = report_nodes([groups.urls[0].replace("locks-0", "lokcs")], timeout=SHORT)
    assert report.failure is not None
    assert report.failure.kind is FailureKind.SETUP
    assert "watch no master named 'lokcs'; correct the URL" in report.failure.text


def test_without_a_majority_of_sentinels_each_is_named(groups: LocalSentinel) -> None:
    for index in (0, 1):
        groups.kill_sentinel(index)
    (report,) = report_nodes([groups.urls[0]], timeout=SHORT)
    assert report.failure is not None
    assert report.failure.kind is FailureKind.SILENT
    for url in groups.sentinel_urls[:2]:
        assert f"127.0.0.1:{port_of(url)}" in report.failure.text
