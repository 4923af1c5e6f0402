"""What the replies of Sentinels mean."""

from __future__ import annotations

import pytest

from celery_redlock.protocol.mastership import TAKEOVER
from celery_redlock.transport import parse_node
from celery_redlock.transport.redis.connect_error import ConnectError
from celery_redlock.transport.redis.sentinel import Report, SentinelGroup, named_master

FORMER, NEW = ("10.0.0.1", 6379), ("10.0.0.2", 6379)
SILENT = ConnectError("s1 TimeoutError", lasting=False)
REFUSING = ConnectError("s2 is not a Sentinel", lasting=True)


def says(address: tuple[str, int], epoch: int = 0, *, vouches: bool = True) -> Report:
    """Return what a Sentinel says."""
    return Report(address, epoch, vouches)


@pytest.mark.parametrize(
    ("reports", "named"),
    [
        ([says(FORMER)] * 3, FORMER),
        ([says(FORMER), says(FORMER), SILENT], FORMER),
        ([says(FORMER), SILENT, SILENT], None),
        ([SILENT] * 3, None),
        ([says(FORMER)], FORMER),
        ([says(FORMER), SILENT], None),
        # A planned failover: the first Sentinel has promoted another server.
        ([says(NEW, 1), says(FORMER), says(FORMER)], None),
        ([says(NEW, 1), says(NEW, 1), says(FORMER)], NEW),
        # The Sentinel that leads the failover gives the old address its epoch.
        ([says(FORMER, 1, vouches=False), says(FORMER), says(FORMER)], None),
        ([says(FORMER, vouches=False), says(FORMER, vouches=False), says(FORMER)], None),
        # One that has been away names whom it knew.
        ([says(FORMER, 3), says(NEW, 4), says(NEW, 4)], NEW),
        ([says(NEW, 4), says(NEW, 4), says(FORMER, 5, vouches=False)], None),
    ],
)
def test_a_majority_names_the_master_unless_one_knows_better(
    reports: list[Report | ConnectError], named: tuple[str, int] | None
) -> None:
    found = named_master(reports)
    assert named == (found and found.address)


def test_the_epoch_of_a_master_is_the_newest_that_is_told_of_it() -> None:
    found = named_master([says(NEW, 1), says(NEW, 2), says(NEW, 1)])
    assert found is not None
    assert found.epoch == 2


@pytest.mark.parametrize(("of_all", "named"), [(False, FORMER), (True, None)])
def test_a_majority_of_those_that_are_known_may_have_to_agree(
    *, of_all: bool, named: tuple[str, int] | None
) -> None:
    reports = [Report(FORMER, 0, vouches=True, others=4)] * 2
    found = named_master(reports, of_all=of_all)
    assert named == (found and found.address)


def test_sentinels_that_the_url_does_not_name_are_missed_with_the_guard_on() -> None:
    node = group(takeover=TAKEOVER)
    tell(node, Report(FORMER, 0, vouches=True, others=5))
    assert node.problem == "its Sentinels know more than the URL names; name all of them"


def group(takeover: float = 0.0) -> SentinelGroup:
    """Return a node of three Sentinels."""
    return SentinelGroup(parse_node("redis+sentinel://s1,s2,s3/locks"), takeover)


def tell(node: SentinelGroup, *told: Report | ConnectError, at: float = 100.0) -> None:
    """Let a node learn what its Sentinels say; the last one says it for the rest, too."""
    by_url = dict.fromkeys(node.sentinels, told[-1]) | dict(zip(node.sentinels, told, strict=False))
    node.learn(by_url, at)


def test_the_same_master_is_confirmed() -> None:
    node = group()
    tell(node, says(FORMER))
    known = node.master
    tell(node, says(FORMER), at=107.0)
    assert node.master is known
    assert known is not None
    assert known.confirmed_at == 107.0


@pytest.mark.parametrize("report", [says(NEW, 1), says(FORMER, 1)])
def test_a_promotion_makes_another_master_of_it(report: Report) -> None:
    node = group()
    tell(node, says(FORMER))
    known = node.master
    tell(node, report)
    assert node.master is not known
    assert node.master is not None
    assert (node.master.address, node.master.epoch) == (report.address, 1)


def test_a_former_master_is_not_confirmed_again() -> None:
    node = group()
    tell(node, says(NEW, 1))
    tell(node, says(FORMER, 0), at=107.0)
    assert node.master is not None
    assert node.master.address == NEW
    assert node.master.confirmed_at == 100.0
    assert node.problem == "its Sentinels name a former master"


def test_sentinels_that_were_set_up_anew_are_believed_after_a_takeover() -> None:
    node = group()
    tell(node, says(NEW, 5))
    tell(node, says(FORMER, 0), at=100.1 + TAKEOVER)
    assert node.master is not None
    assert (node.master.address, node.master.epoch) == (FORMER, 0)


@pytest.mark.parametrize(
    ("told", "problem", "lasting"),
    [
        ([SILENT], "no majority of its Sentinels names a master: s1 TimeoutError", False),
        (
            [says(FORMER), REFUSING],
            "no majority of its Sentinels names a master: s1 TimeoutError; s2 is not a Sentinel",
            False,
        ),
        ([REFUSING], "no majority of its Sentinels names a master: s2 is not a Sentinel", True),
        (
            [ConnectError("s1 watches no master of that name", lasting=True)],
            "its Sentinels watch no master named 'locks'; correct the URL",
            True,
        ),
        ([says(FORMER), says(NEW)], "no majority of its 3 Sentinels names one master", False),
    ],
)
def test_a_node_without_a_named_master_has_a_reason(
    told: list[Report | ConnectError], problem: str, lasting: bool
) -> None:
    node = group()
    if len(told) == 2:
        told = [told[0], told[1], SILENT]
    tell(node, *told)
    assert (node.problem, node.lasting) == (problem, lasting)


def test_a_reason_does_not_take_the_master_away() -> None:
    node = group()
    tell(node, says(FORMER))
    tell(node, SILENT)
    assert node.master is not None
