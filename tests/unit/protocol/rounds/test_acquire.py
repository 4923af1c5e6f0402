"""Votes on an acquire decide as the protocol says, as soon as they can."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock.protocol.rounds import AcquireRound, Phase, ReserveRound
from celery_redlock.protocol.timing import quorum
from celery_redlock.protocol.votes import (
    Acknowledged,
    Failed,
    Granted,
    KeyHolder,
    NotHeld,
    Quarantined,
    Refused,
    Vote,
)

SENT = 100.0
TTL = 10.0
DRIFT_FACTOR = 0.01
TRUST = SENT + TTL - TTL * DRIFT_FACTOR - 0.002


def granted(token: int = 7) -> Granted:
    return Granted(token, token)


def held(owner: str, *, key: int = 0, expires_in: float = 5.0) -> Refused:
    return Refused((KeyHolder(key, owner, expires_in),))


FAILED = Failed("no answer")
QUARANTINED = Quarantined(3.0)


def acquire_round(nodes: int = 5) -> AcquireRound:
    return AcquireRound(nodes, sent_at=SENT, ttl=TTL, drift_factor=DRIFT_FACTOR)


def decide(votes: list[Vote], *, nodes: int = 5, now: float = SENT + 0.01) -> AcquireRound:
    round_ = acquire_round(nodes)
    for node, vote in enumerate(votes):
        round_.vote(node, vote, now)
    return round_


def test_less_than_a_quorum_decides_nothing_while_votes_are_out() -> None:
    assert decide([granted(), granted()]).phase is Phase.VOTING


def test_trust_counts_from_the_sending_and_gives_up_the_drift() -> None:
    assert decide([granted()] * 3, now=SENT + 4).valid_until == pytest.approx(TRUST)


def test_a_quorum_that_answers_when_trust_has_ended_is_late() -> None:
    assert decide([granted()] * 3, now=TRUST).phase is Phase.LATE


def test_a_holder_on_less_than_a_quorum_is_waited_for_while_votes_are_out() -> None:
    assert decide([held("other")] * 2).phase is Phase.VOTING


@pytest.mark.parametrize(
    "votes",
    [
        pytest.param([granted(), granted(), held("a"), held("a"), held("b")], id="2-2-1"),
        pytest.param([held("a"), held("b"), held("c"), held("d")], id="four others, one vote out"),
        pytest.param([held("a"), held("b"), held("c"), held("d"), held("e")], id="five others"),
        pytest.param([granted(), granted(), held("a"), held("a"), FAILED], id="with a failed node"),
        pytest.param([granted(), granted(), FAILED, FAILED, held("a")], id="with two failed nodes"),
    ],
)
def test_nodes_shared_by_several_contenders_are_a_split_and_no_conflict(votes: list[Vote]) -> None:
    assert decide(votes).phase is Phase.SPLIT


def test_different_owners_on_different_keys_of_a_quorum_are_no_conflict() -> None:
    votes: list[Vote] = [held("a", key=0), held("a", key=1), held("a", key=0), held("b", key=0)]
    round_ = decide(votes)
    assert round_.phase is Phase.VOTING
    assert round_.vote(4, held("c", key=1), SENT) is Phase.SPLIT


def test_one_of_several_keys_that_a_quorum_says_is_taken_is_a_conflict() -> None:
    both = Refused((KeyHolder(0, "a", 1.0), KeyHolder(1, "b", 2.0)))
    assert decide([both, held("a"), held("a", key=0)]).phase is Phase.CONTENDED


@pytest.mark.parametrize("lost", list(itertools.product([FAILED, QUARANTINED], repeat=3)))
def test_failed_and_quarantined_nodes_that_leave_no_quorum_end_the_round(lost: list[Vote]) -> None:
    round_ = decide([*lost[:2]])
    assert round_.phase is Phase.VOTING
    assert round_.vote(2, lost[2], SENT) is Phase.UNAVAILABLE


@pytest.mark.parametrize(("nodes", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4)])
def test_half_of_an_even_number_of_nodes_is_no_quorum(nodes: int, needed: int) -> None:
    assert decide([granted()] * (needed - 1), nodes=nodes).phase is Phase.VOTING
    assert decide([granted()] * needed, nodes=nodes).phase is Phase.GRANTED


def test_different_counters_need_the_second_round_for_the_largest() -> None:
    round_ = decide([granted(7), granted(9), granted(8)])
    assert (round_.phase, round_.token) == (Phase.RAISING, 9)


def test_counters_that_differ_between_keys_need_the_second_round() -> None:
    assert decide([Granted(8, 9)] * 3).phase is Phase.RAISING


def test_the_second_round_is_granted_at_a_quorum_of_acknowledgements() -> None:
    round_ = decide([granted(7), granted(9), granted(8)])
    assert round_.vote(0, Acknowledged(), SENT) is Phase.RAISING
    assert round_.vote(3, Acknowledged(), SENT) is Phase.RAISING
    assert (round_.vote(4, Acknowledged(), SENT), round_.token) == (Phase.GRANTED, 9)


def test_the_second_round_is_late_where_trust_has_ended() -> None:
    round_ = decide([granted(7), granted(9), granted(8)])
    for node in (0, 1):
        round_.vote(node, Acknowledged(), SENT)
    assert round_.vote(2, Acknowledged(), TRUST) is Phase.LATE


def test_keys_that_are_no_longer_ours_end_the_second_round_undecided() -> None:
    round_ = decide([granted(7), granted(9), granted(8)])
    for node in (0, 1):
        round_.vote(node, NotHeld(missing=False), SENT)
    assert round_.vote(2, NotHeld(missing=False), SENT) is Phase.SPLIT


def test_a_failed_second_round_names_the_nodes_of_the_second_round() -> None:
    round_ = decide([granted(7), granted(9), FAILED, granted(8)])
    for node in (0, 1, 2):
        round_.vote(node, FAILED, SENT)
    assert (round_.phase, round_.votes) == (Phase.UNAVAILABLE, [FAILED] * 3 + [None] * 2)


def test_a_decided_round_stays_as_it_is() -> None:
    round_ = decide([granted(7)] * 3)
    for vote in (granted(9), FAILED, held("other")):
        assert round_.vote(3, vote, SENT) is Phase.GRANTED
    assert round_.token == 7


def test_the_holder_told_is_the_one_seen_most_with_its_longest_time() -> None:
    round_ = decide(
        [held("b", expires_in=9.0), held("a", expires_in=1.0), held("a", expires_in=2.0)]
    )
    assert KeyHolder(0, "a", 2.0) == round_.holder()


votes = st.one_of(
    st.builds(granted, st.integers(1, 3)),
    st.sampled_from([held("a"), held("b"), FAILED, QUARANTINED]),
)


@given(st.integers(1, 7).flatmap(lambda n: st.lists(votes, min_size=n, max_size=n)))
def test_when_all_have_voted_the_outcome_follows_from_the_counts(cast: list[Vote]) -> None:
    nodes = len(cast)
    needed = quorum(nodes)
    round_ = decide(cast, nodes=nodes)
    grants = [vote for vote in cast if isinstance(vote, Granted)]
    lost = sum(isinstance(vote, Failed | Quarantined) for vote in cast)
    owners = [vote.holders[0].owner for vote in cast if isinstance(vote, Refused)]
    most = max((owners.count(owner) for owner in owners), default=0)
    if len(grants) >= needed:
        assert round_.phase in (Phase.GRANTED, Phase.RAISING)
    elif lost > nodes - needed:
        assert round_.phase in (Phase.UNAVAILABLE, Phase.CONTENDED, Phase.SPLIT)
        assert (round_.phase is Phase.CONTENDED) <= (most >= needed)
    elif most >= needed:
        assert round_.phase is Phase.CONTENDED
    else:
        assert round_.phase is Phase.SPLIT


@given(st.integers(1, 7).flatmap(lambda n: st.lists(votes, min_size=n, max_size=n)))
def test_an_early_decision_is_the_one_that_all_votes_would_have_given(cast: list[Vote]) -> None:
    nodes = len(cast)
    round_ = acquire_round(nodes)
    for node, vote in enumerate(cast):
        phase = round_.vote(node, vote, SENT)
        if phase is not Phase.VOTING:
            grants = sum(isinstance(vote, Granted) for vote in cast)
            assert (phase in (Phase.GRANTED, Phase.RAISING)) == (grants >= quorum(nodes))
            return
    pytest.fail("every round ends when all have voted")


def test_a_reservation_needs_no_equal_counters() -> None:
    round_ = ReserveRound(5, sent_at=SENT, ttl=TTL, drift_factor=DRIFT_FACTOR)
    for node in range(3):
        round_.vote(node, granted(node + 1), SENT + 0.01)
    assert round_.phase is Phase.GRANTED


def test_a_reservation_on_a_quorum_that_answers_too_late_is_late() -> None:
    round_ = ReserveRound(5, sent_at=SENT, ttl=TTL, drift_factor=DRIFT_FACTOR)
    for node in range(3):
        round_.vote(node, granted(), TRUST)
    assert round_.phase is Phase.LATE


def test_a_reservation_needs_a_quorum() -> None:
    round_ = ReserveRound(5, sent_at=SENT, ttl=TTL, drift_factor=DRIFT_FACTOR)
    for node, vote in enumerate([granted(), granted(), held("a"), held("b")]):
        round_.vote(node, vote, SENT)
    assert round_.phase is Phase.VOTING
    assert round_.vote(4, FAILED, SENT) is Phase.SPLIT


def both_held(first: str, second: str) -> Refused:
    return Refused((KeyHolder(0, first, 9.0), KeyHolder(1, second, 5.0)))


def test_of_two_keys_that_are_held_each_has_its_own_holder() -> None:
    round_ = decide([both_held("a", "b")] * 3)
    assert (round_.holder().owner, round_.holder([1]).owner) == ("a", "b")  # type: ignore[union-attr]


def test_the_keys_that_one_owner_has_on_a_quorum_are_told() -> None:
    round_ = decide([both_held("a", "b"), both_held("a", "b"), both_held("a", "c")])
    assert round_.taken_keys() == {0}
