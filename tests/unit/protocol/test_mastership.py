"""Whose votes count for a node that can fail over."""

from __future__ import annotations

import pytest

from celery_redlock.protocol.commands import Script
from celery_redlock.protocol.mastership import MAX_AGE, Master
from celery_redlock.protocol.votes import (
    Acknowledged,
    Failed,
    Granted,
    LeaseVotes,
    NotHeld,
    Quarantined,
    Refused,
)

TAKEOVER = 30.0


def promoted(takeover: float = TAKEOVER) -> Master:
    """Return a server that was seen as the master at 100 seconds."""
    return Master(("one", 6379), 1, confirmed_at=100.0, seen_at=100.0, takeover=takeover)


def test_a_vote_counts_until_the_confirmation_is_too_old() -> None:
    vote = Granted(1, 1)
    assert promoted().counted(vote, Script.ACQUIRE, 100.0 + MAX_AGE, 100.0 + MAX_AGE) is vote


def test_a_vote_that_nobody_confirms_counts_as_none() -> None:
    vote = promoted().counted(Granted(1, 1), Script.ACQUIRE, 100.1 + MAX_AGE, 100.1 + MAX_AGE)
    assert isinstance(vote, Failed)
    assert "was not confirmed" in vote.reason


def test_a_confirmation_after_the_command_was_sent_counts_as_well() -> None:
    master = promoted()
    master.confirmed_at = 120.0
    assert isinstance(master.counted(Granted(1, 1), Script.ACQUIRE, 110.0, 121.0), Granted)


def test_a_vote_that_comes_late_counts_as_none_whenever_it_was_asked_for() -> None:
    vote = promoted().counted(Granted(1, 1), Script.ACQUIRE, 100.0, 100.1 + MAX_AGE)
    assert isinstance(vote, Failed)


@pytest.mark.parametrize(
    "script",
    [
        *(Script.EXTEND, Script.RAISE, Script.INSPECT, Script.PAUSE),
        *(Script.WRITE_REGISTER, Script.READ_REGISTER),
    ],
)
def test_a_promoted_server_has_no_vote_on_what_is_held(script: Script) -> None:
    vote = promoted().counted(Acknowledged(), script, 101.0, 101.0)
    assert isinstance(vote, Failed)
    assert "was promoted" in vote.reason


@pytest.mark.parametrize("script", [Script.RELEASE, Script.HEAL, Script.ENQUEUE])
def test_other_commands_count_at_once(script: Script) -> None:
    vote = Acknowledged()
    assert promoted().counted(vote, script, 101.0, 101.0) is vote


def test_it_has_one_when_the_former_master_cannot_vote_any_more() -> None:
    master = promoted()
    master.confirmed_at = 100.0 + TAKEOVER
    assert isinstance(master.counted(Acknowledged(), Script.EXTEND, 130.0, 130.0), Acknowledged)


@pytest.mark.parametrize("vote", [Granted(1, 1), Refused(())])
def test_it_has_one_as_soon_as_its_quarantine_has_ended(vote: Granted | Refused) -> None:
    master = promoted()
    master.counted(vote, Script.ACQUIRE, 101.0, 101.0)
    assert isinstance(master.counted(Acknowledged(), Script.EXTEND, 101.0, 101.0), Acknowledged)


@pytest.mark.parametrize("vote", [Quarantined(90.0), Failed("no reply")])
def test_neither_a_quarantine_nor_a_failure_shows_that_it_has_ended(
    vote: Quarantined | Failed,
) -> None:
    master = promoted()
    master.counted(vote, Script.ACQUIRE, 101.0, 101.0)
    assert isinstance(master.counted(Acknowledged(), Script.EXTEND, 101.0, 101.0), Failed)


def test_a_vote_that_nobody_confirmed_shows_nothing() -> None:
    master = promoted()
    master.counted(Granted(1, 1), Script.ACQUIRE, 110.0, 110.0)
    master.confirmed_at = 110.0
    assert isinstance(master.counted(Acknowledged(), Script.EXTEND, 110.0, 110.0), Failed)


def test_without_a_guard_it_has_one_at_once() -> None:
    vote = promoted(takeover=0.0).counted(Acknowledged(), Script.EXTEND, 100.0, 100.0)
    assert isinstance(vote, Acknowledged)


def test_a_key_that_a_promoted_server_lacks_may_be_set_again_there_at_once() -> None:
    missing = NotHeld(missing=True)
    assert promoted().counted(missing, Script.EXTEND, 101.0, 101.0) is missing
    votes = LeaseVotes((Acknowledged(), missing))
    counted = promoted().counted(votes, Script.EXTEND, 101.0, 101.0)
    assert isinstance(counted, LeaseVotes)
    assert [type(vote) for vote in counted.votes] == [Failed, NotHeld]
