"""A write or a claim of a register counts at a quorum; who is outranked is told so."""

from __future__ import annotations

import pytest

from celery_redlock.protocol import (
    Acknowledged,
    Failed,
    Fetched,
    FetchRound,
    Outranked,
    Phase,
    StoreRound,
    Versioned,
    Vote,
)

FAILED = Failed("no answer")
DONE = Acknowledged()


def told(untold: tuple[str, ...] = (), /, **fields: Versioned) -> Fetched:
    return Fetched(9, fields, frozenset(untold))


def stored(*votes: Vote, nodes: int = 5) -> StoreRound:
    round_ = StoreRound(nodes)
    for node, vote in enumerate(votes):
        round_.vote(node, vote, 0.0)
    return round_


def fetched(*votes: Vote, nodes: int = 5) -> FetchRound:
    round_ = FetchRound(nodes)
    for node, vote in enumerate(votes):
        round_.vote(node, vote, 0.0)
    return round_


def test_a_write_is_done_at_a_quorum_and_not_before() -> None:
    assert stored(DONE, DONE).phase is Phase.VOTING
    assert stored(DONE, DONE, DONE).phase is Phase.GRANTED


def test_a_quorum_counts_whatever_the_others_say() -> None:
    assert stored(Outranked(9), FAILED, DONE, DONE, DONE).phase is Phase.GRANTED
    assert fetched(Outranked(9), FAILED, told(), told(), told()).phase is Phase.GRANTED


def test_a_write_is_outranked_as_soon_as_no_quorum_is_left_because_of_it() -> None:
    round_ = stored(Outranked(9), DONE, Outranked(11), DONE)
    assert round_.phase is Phase.VOTING
    assert round_.vote(4, Outranked(10), 0.0) is Phase.OUTRANKED
    assert round_.outranked_by == 11


@pytest.mark.parametrize(
    "votes",
    [
        (Outranked(9), FAILED, FAILED),
        (FAILED, FAILED, Outranked(9)),
        (FAILED, DONE, Outranked(9), DONE, FAILED),
    ],
)
def test_one_node_that_has_seen_a_newer_token_tells_why_the_others_are_too_few(
    votes: tuple[Vote, ...],
) -> None:
    assert stored(*votes).phase is Phase.OUTRANKED


def test_without_a_quorum_of_answers_nothing_is_known() -> None:
    assert stored(DONE, FAILED, FAILED, FAILED).phase is Phase.UNAVAILABLE
    assert fetched(told(), FAILED, FAILED, FAILED).phase is Phase.UNAVAILABLE


def test_an_answer_to_another_question_does_not_help() -> None:
    assert stored(told(), told(), told()).phase is Phase.UNAVAILABLE
    assert fetched(DONE, DONE, DONE).phase is Phase.UNAVAILABLE


def test_a_node_has_one_vote() -> None:
    round_ = stored(DONE, DONE)
    assert round_.vote(0, DONE, 0.0) is Phase.VOTING
    assert round_.vote(2, DONE, 0.0) is Phase.GRANTED


def test_what_is_decided_stays_decided() -> None:
    round_ = stored(DONE, DONE, DONE)
    assert round_.vote(3, Outranked(9), 0.0) is Phase.GRANTED
    assert round_.outranked_by == 0


def test_a_single_node_decides_alone() -> None:
    assert stored(DONE, nodes=1).phase is Phase.GRANTED
    assert stored(Outranked(9), nodes=1).phase is Phase.OUTRANKED
    assert stored(FAILED, nodes=1).phase is Phase.UNAVAILABLE


def test_of_what_nodes_tell_the_newest_counts_by_token_and_then_by_version() -> None:
    round_ = fetched(
        told(a=Versioned(5, 9, "old"), b=Versioned(6, 10, "new")),
        told(a=Versioned(6, 1, "new"), b=Versioned(6, 9, "old")),
        told(c=Versioned(1, 1, "only here")),
    )
    assert round_.fields() == {
        "a": Versioned(6, 1, "new"),
        "b": Versioned(6, 10, "new"),
        "c": Versioned(1, 1, "only here"),
    }


def test_what_some_node_has_not_told_is_asked_for_again_and_not_taken_from_another() -> None:
    old = Versioned(5, 9, "perhaps old")
    round_ = fetched(told(("a", "c"), b=old), told(("b",), a=old), told(a=old, b=old, d=old))
    assert round_.untold() == ["a", "b", "c"]
    assert round_.fields() == {"d": old}
