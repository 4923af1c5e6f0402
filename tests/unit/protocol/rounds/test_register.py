"""A write or a claim of a register counts at a quorum; who is outranked is told so."""

from __future__ import annotations

import pytest

from celery_redlock.protocol.rounds import Phase, RegisterRound
from celery_redlock.protocol.votes import (
    Acknowledged,
    Failed,
    RegisterContents,
    Superseded,
    VersionedValue,
    Vote,
)

FAILED = Failed("no answer")
DONE = Acknowledged()


def told(truncated: tuple[str, ...] = (), /, **fields: VersionedValue) -> RegisterContents:
    return RegisterContents(9, fields, frozenset(truncated))


def stored(*votes: Vote, nodes: int = 5) -> RegisterRound:
    round_ = RegisterRound(nodes, Acknowledged)
    for node, vote in enumerate(votes):
        round_.vote(node, vote, 0.0)
    return round_


def fetched(*votes: Vote, nodes: int = 5) -> RegisterRound:
    round_ = RegisterRound(nodes, RegisterContents)
    for node, vote in enumerate(votes):
        round_.vote(node, vote, 0.0)
    return round_


def test_a_write_is_done_at_a_quorum_and_not_before() -> None:
    assert stored(DONE, DONE).phase is Phase.VOTING
    assert stored(DONE, DONE, DONE).phase is Phase.GRANTED


def test_a_quorum_counts_whatever_the_others_say() -> None:
    assert stored(Superseded(9), FAILED, DONE, DONE, DONE).phase is Phase.GRANTED
    assert fetched(Superseded(9), FAILED, told(), told(), told()).phase is Phase.GRANTED


def test_a_write_is_outranked_as_soon_as_no_quorum_is_left_because_of_it() -> None:
    round_ = stored(Superseded(9), DONE, Superseded(11), DONE)
    assert round_.phase is Phase.VOTING
    assert round_.vote(4, Superseded(10), 0.0) is Phase.SUPERSEDED
    assert round_.newest_token == 11


@pytest.mark.parametrize(
    "votes",
    [
        (Superseded(9), FAILED, FAILED),
        (FAILED, FAILED, Superseded(9)),
        (FAILED, DONE, Superseded(9), DONE, FAILED),
    ],
)
def test_one_node_that_has_seen_a_newer_token_tells_why_the_others_are_too_few(
    votes: tuple[Vote, ...],
) -> None:
    assert stored(*votes).phase is Phase.SUPERSEDED


def test_an_answer_to_another_question_does_not_help() -> None:
    assert stored(told(), told(), told()).phase is Phase.UNAVAILABLE
    assert fetched(DONE, DONE, DONE).phase is Phase.UNAVAILABLE


def test_what_is_decided_stays_decided() -> None:
    round_ = stored(DONE, DONE, DONE)
    assert round_.vote(3, Superseded(9), 0.0) is Phase.GRANTED
    assert round_.newest_token == 0


def test_what_some_node_has_not_told_is_asked_for_again_and_not_taken_from_another() -> None:
    old = VersionedValue(5, 9, "perhaps old")
    round_ = fetched(told(("a", "c"), b=old), told(("b",), a=old), told(a=old, b=old, d=old))
    assert round_.truncated() == ["a", "b", "c"]
    assert round_.fields() == {"d": old}
