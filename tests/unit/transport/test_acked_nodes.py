"""Which nodes count as done with a command, and what they get because of their answers."""

from __future__ import annotations

import pytest

from celery_redlock.protocol.votes import (
    ACKNOWLEDGED,
    FOREIGN,
    Failed,
    Granted,
    Quarantined,
    Refused,
    Vote,
)
from celery_redlock.transport import AckedNodes
from tests.support.commands import extend, release

LENGTHEN = extend(("k",), "owner", 1000, 0)
FREE = release(("k",), "owner", 0)


@pytest.fixture
def acked() -> AckedNodes:
    """What a publisher knows that has sent its message."""
    acked = AckedNodes({0})
    acked.max_counter, acked.undo = 17, FREE
    acked.followup, acked.followup_deadline = LENGTHEN, 2.0
    return acked


@pytest.mark.parametrize("vote", [Granted(17, 17), ACKNOWLEDGED, FOREIGN])
def test_a_node_that_is_done_gets_what_follows(acked: AckedNodes, vote: Vote) -> None:
    assert acked.record_vote(1, vote, 1.0) == LENGTHEN
    assert acked == {0, 1}


@pytest.mark.parametrize("vote", [Refused(()), Quarantined(1.0), Failed("garbage"), None])
def test_a_node_that_has_not_executed_the_command_is_not_done(
    acked: AckedNodes, vote: Vote | None
) -> None:
    assert acked.record_vote(1, vote, 1.0) is None
    assert acked == {0}


@pytest.mark.parametrize("vote", [Granted(18, 18), Granted(17, 18)])
def test_a_node_that_something_newer_has_been_at_is_freed(acked: AckedNodes, vote: Vote) -> None:
    assert acked.record_vote(1, vote, 1.0) == FREE
    assert acked == {0}


def test_what_is_too_late_for_what_follows_is_noted(acked: AckedNodes) -> None:
    assert acked.record_vote(1, Granted(17, 17), 2.0) is None
    assert acked == {0, 1}


def test_any_grant_counts_where_no_message_is_out() -> None:
    acked = AckedNodes()
    assert acked.record_vote(1, Granted(18, 18), 0.0) is None
    assert acked == {1}


def test_a_node_that_connects_between_the_rounds_may_hold_nothing() -> None:
    acked = AckedNodes()
    assert acked.record_vote(1, FOREIGN, 0.0) is None
    assert acked.record_vote(2, ACKNOWLEDGED, 0.0) is None
    assert acked == {1, 2}
    assert acked.not_held == {1}
