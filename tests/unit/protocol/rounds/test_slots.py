"""Votes on an acquire where keys have slots decide for one slot that a quorum has."""

from __future__ import annotations

from celery_redlock.protocol.keys import GOES_FIRST
from celery_redlock.protocol.rounds import Phase, SlotRound
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

FAILED = Failed("no answer")


def granted(slot: int, token: int = 7) -> Granted:
    return Granted(token, token, (slot,))


def full(*owners: str, turn_in: float = 0.0) -> Refused:
    """Return a refusal by a node where these have the slots, in their order."""
    holders = tuple(KeyHolder(at, owner, 5.0) for at, owner in enumerate(owners))
    return Refused(holders, turn_in)


def decide(
    votes: list[Vote],
    *,
    places: tuple[int, ...] = (2,),
    rates: tuple[int, ...] = (),
    nodes: int = 5,
) -> SlotRound:
    round_ = SlotRound(
        nodes, sent_at=SENT, ttl=TTL, drift_factor=DRIFT_FACTOR, places=places, rates=rates
    )
    for node, vote in enumerate(votes):
        round_.vote(node, vote, SENT + 0.01)
    return round_


def raise_with(round_: SlotRound, votes: list[Vote], now: float = SENT + 0.02) -> Phase:
    for node, vote in enumerate(votes):
        round_.vote(node, vote, now)
    return round_.phase


def test_a_refused_attempt_has_no_slots() -> None:
    assert decide([full("a", "b")] * 3).slots == ()


def test_a_quorum_of_grants_of_one_slot_and_token_is_granted() -> None:
    round_ = decide([granted(1)] * 3)
    assert (round_.phase, round_.slots, round_.token) == (Phase.GRANTED, (1,), 7)


def test_a_quorum_of_grants_of_different_slots_needs_the_second_round() -> None:
    assert decide([granted(0), granted(1), granted(1)]).phase is Phase.RAISING


def test_equal_slots_with_different_counters_need_the_second_round() -> None:
    assert decide([granted(1, 7), granted(1, 8), granted(1, 7)]).phase is Phase.RAISING


def test_the_slot_that_most_nodes_granted_is_taken() -> None:
    assert decide([granted(0), granted(1), granted(1)]).slots == (1,)


def test_the_token_is_the_largest_counter_of_any_slot() -> None:
    assert decide([granted(0, 9), granted(1, 7), granted(1, 7)]).token == 9


def test_slots_of_several_keys_are_taken_together() -> None:
    votes: list[Vote] = [Granted(7, 7, (0, 1)), Granted(7, 7, (0, 2)), Granted(7, 7, (0, 2))]
    round_ = decide(votes, places=(2, 1, 3))
    assert (round_.phase, round_.slots) == (Phase.RAISING, (0, 2))


def test_the_second_round_grants_what_a_quorum_has_acknowledged() -> None:
    round_ = decide([granted(0), granted(1), granted(1)])
    assert raise_with(round_, [Acknowledged()] * 3) is Phase.GRANTED


def test_the_second_round_is_split_where_no_quorum_can_have_the_slot() -> None:
    round_ = decide([granted(0), granted(1), granted(1)])
    assert raise_with(round_, [NotHeld(missing=False)] * 3) is Phase.SPLIT


def test_nodes_in_quarantine_do_not_count_in_the_second_round() -> None:
    round_ = decide([granted(0), granted(1), granted(1)])
    votes: list[Vote] = [Acknowledged(), Acknowledged(), *[Quarantined(1.0)] * 3]
    assert raise_with(round_, votes) is Phase.SPLIT


def test_a_second_round_after_its_validity_is_late() -> None:
    round_ = decide([granted(0), granted(1), granted(1)])
    assert raise_with(round_, [Acknowledged()] * 3, TRUST) is Phase.LATE


def test_a_key_is_taken_where_one_owner_has_each_slot_on_a_quorum() -> None:
    assert decide([full("a", "b")] * 3).phase is Phase.CONTENDED


def test_a_slot_that_different_owners_have_is_no_conflict_yet() -> None:
    votes: list[Vote] = [full("a", "b"), full("a", "c"), full("a", "d")]
    assert decide(votes).phase is Phase.VOTING
    assert decide([*votes, full("a", "e"), full("a", "f")]).phase is Phase.SPLIT


def test_one_slot_that_another_has_on_a_quorum_is_no_conflict() -> None:
    votes: list[Vote] = [full("a", "b"), full("a", "b"), full("a", "c"), granted(1), granted(1)]
    assert decide(votes).phase is Phase.SPLIT


def test_a_key_with_a_rate_is_taken_once_a_quorum_refuses_it() -> None:
    votes: list[Vote] = [full("a", "b"), full("a", "c"), full("d", "b")]
    assert decide(votes, rates=(0,)).phase is Phase.CONTENDED


def test_the_keys_that_are_full_are_named_by_their_positions() -> None:
    holders = tuple(KeyHolder(at, "them", 5.0) for at in (1, 2))
    round_ = decide([Refused(holders)] * 3, places=(1, 2, 3))
    assert round_.full() == [1]


def test_a_slot_that_others_wait_for_is_taken_whoever_goes_first_on_each_node() -> None:
    votes: list[Vote] = [full("a", f"{GOES_FIRST}w{node}") for node in range(3)]
    assert decide(votes).phase is Phase.CONTENDED


def test_the_turn_is_the_median_of_the_nodes() -> None:
    votes: list[Vote] = [full("a", turn_in=turn) for turn in (1.0, 9.0, 2.0)]
    assert decide(votes, places=(1,), rates=(0,)).turn_in() == 2.0


def test_without_a_refusal_there_is_no_turn() -> None:
    assert decide([granted(0)] * 3).turn_in() == 0.0


def test_too_few_nodes_are_no_conflict() -> None:
    assert decide([full("a", "b"), FAILED, FAILED, FAILED]).phase is Phase.UNAVAILABLE
