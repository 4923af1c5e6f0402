"""Reports about nodes of this process."""

from __future__ import annotations

import pytest

from celery_redlock import ConfigurationError
from celery_redlock.admin.diagnosis import Severity, diagnose
from celery_redlock.admin.node_report import FailureKind, Guard, report_nodes, sentinel_facts
from celery_redlock.tasks.config.settings import RedlockSettings
from celery_redlock.transport import parse_node
from celery_redlock.transport.memory import MemoryNode, memory_node
from celery_redlock.transport.redis.connect_error import ConnectError
from celery_redlock.transport.redis.sentinel import Report


@pytest.fixture
def nodes(redlock_memory_nodes: list[str]) -> list[MemoryNode]:
    """Five nodes that vote."""
    return [memory_node(parse_node(url)) for url in redlock_memory_nodes]


def urls(nodes: list[MemoryNode]) -> list[str]:
    return [node.name for node in nodes]


def test_they_are_masters_that_vote(nodes: list[MemoryNode]) -> None:
    reports = report_nodes(urls(nodes))

    assert [one.url for one in reports] == urls(nodes)
    assert {(one.is_reachable, one.role, one.guard) for one in reports} == {
        (True, "master", Guard.SERVING)
    }
    assert diagnose(reports, RedlockSettings()) == ()


@pytest.mark.parametrize("trouble", ["refusing", "paused", "garbage"])
def test_one_that_is_broken_does_not_answer(nodes: list[MemoryNode], trouble: str) -> None:
    setattr(nodes[0], trouble, True)

    failures = [one.failure for one in report_nodes(urls(nodes))]
    assert failures[0] is not None
    assert failures[0].kind is FailureKind.SILENT
    assert failures[1:] == [None] * 4


@pytest.mark.parametrize(("keep_data", "guard"), [(False, Guard.MISSING), (True, Guard.OTHER)])
def test_one_that_restarted_has_no_record_of_itself(
    nodes: list[MemoryNode], keep_data: bool, guard: Guard
) -> None:
    nodes[0].restart(keep_data=keep_data)

    reports = report_nodes(urls(nodes))
    assert [one.guard for one in reports] == [guard, *[Guard.SERVING] * 4]
    assert [one.code for one in diagnose(reports, RedlockSettings())] == ["restarted"]


def test_a_clock_that_is_ahead_is_compared_with_this_machine_and_the_other_nodes(
    nodes: list[MemoryNode],
) -> None:
    nodes[0].skew = 7.0

    first, second, *_ = reports = report_nodes(urls(nodes))
    assert first.clock_skew == pytest.approx(7.0, abs=0.5)
    assert first.skew_from_nodes == pytest.approx(7.0, abs=0.5)
    assert second.skew_from_nodes == pytest.approx(0.0, abs=0.5)
    assert [(one.code, one.node) for one in diagnose(reports, RedlockSettings())] == [
        ("clock-skew", nodes[0].name)
    ]


def test_their_clocks_differ_from_this_machines_alone(nodes: list[MemoryNode]) -> None:
    for node in nodes:
        node.skew = -3.0

    (found,) = diagnose(report_nodes(urls(nodes)), RedlockSettings())
    assert (found.node, found.code, found.severity) == (None, "clock-skew", Severity.WARNING)
    assert "This machine's clock is 3 s ahead" in found.message


def test_urls_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(ConfigurationError):
        report_nodes("http://lock1")


MASTER = Report(("10.0.0.1", 6379), 1, vouches=True, others=2)


def test_sentinels_count_themselves_and_name_those_that_are_silent() -> None:
    found = sentinel_facts([MASTER, MASTER, ConnectError("s3:26379 TimeoutError.", lasting=False)])
    assert (found.named, found.known, found.silent) == (3, 3, ("s3:26379 TimeoutError",))
    assert found.agree


@pytest.mark.parametrize(
    "other",
    [Report(("10.0.0.2", 6379), 1, vouches=True), Report(MASTER.address, 1, vouches=False)],
    ids=["another master", "the same, dead"],
)
def test_sentinels_that_take_the_master_for_dead_do_not_agree(other: Report) -> None:
    assert not sentinel_facts([MASTER, MASTER, other]).agree
