"""Which nodes count as done with a command, and what they get because of their answers."""

from __future__ import annotations

import pytest

from celery_redlock.protocol import Failed, Granted, Held, Quarantined, Vote, extend, release
from celery_redlock.protocol.votes import ACKNOWLEDGED, FOREIGN
from celery_redlock.transport import Done

LENGTHEN = extend(("k",), "owner", 1000, 0)
FREE = release(("k",), "owner", 0)


@pytest.fixture
def done() -> Done:
    """What a publisher knows that has sent its message."""
    done = Done({0})
    done.most, done.otherwise = 17, FREE
    done.then, done.then_until = LENGTHEN, 2.0
    return done


@pytest.mark.parametrize("vote", [Granted(17, 17), ACKNOWLEDGED, FOREIGN])
def test_a_node_that_is_done_gets_what_follows(done: Done, vote: Vote) -> None:
    assert done.note(1, vote, 1.0) == LENGTHEN
    assert done == {0, 1}


@pytest.mark.parametrize("vote", [Held(()), Quarantined(1.0), Failed("garbage"), None])
def test_a_node_that_has_not_executed_the_command_is_not_done(
    done: Done, vote: Vote | None
) -> None:
    assert done.note(1, vote, 1.0) is None
    assert done == {0}


@pytest.mark.parametrize("vote", [Granted(18, 18), Granted(17, 18)])
def test_a_node_that_something_newer_has_been_at_is_freed(done: Done, vote: Vote) -> None:
    assert done.note(1, vote, 1.0) == FREE
    assert done == {0}


def test_what_is_too_late_for_what_follows_is_noted(done: Done) -> None:
    assert done.note(1, Granted(17, 17), 2.0) is None
    assert done == {0, 1}


def test_any_grant_counts_where_no_message_is_out() -> None:
    done = Done()
    assert done.note(1, Granted(18, 18), 0.0) is None
    assert done == {1}
