"""Votes on an extension and on a release, and what a lost lease cannot become again."""

from __future__ import annotations

from itertools import permutations

import pytest

from celery_redlock.protocol.rounds import ExtendRound, Phase, ReleaseRound
from celery_redlock.protocol.votes import Acknowledged, Failed, NotHeld, Vote

SENT = 100.0
OLD_TRUST = 104.0
ACK = Acknowledged()
MISSING = NotHeld(missing=True)
FOREIGN = NotHeld(missing=False)
FAILED = Failed("no answer")


def extended(votes: list[Vote], *, now: float = SENT + 0.01) -> ExtendRound:
    round_ = ExtendRound(5, sent_at=SENT, ttl=10.0, drift_factor=0.01, valid_until=OLD_TRUST)
    for node, vote in enumerate(votes):
        round_.vote(node, vote, now)
    return round_


def test_a_quorum_of_acknowledgements_extends_from_the_sending() -> None:
    round_ = extended([ACK] * 3)
    assert round_.phase is Phase.GRANTED
    assert round_.valid_until == pytest.approx(SENT + 10.0 - 0.102)


def test_an_extension_that_completes_when_the_old_trust_has_ended_does_not_count() -> None:
    assert extended([ACK] * 3, now=OLD_TRUST).phase is Phase.LATE


def test_keys_gone_from_a_quorum_cannot_be_extended_ever_again() -> None:
    assert extended([MISSING, FOREIGN, MISSING]).phase is Phase.GONE


def test_nodes_that_do_not_answer_leave_the_lease_what_it_has() -> None:
    assert extended([FAILED, FAILED, MISSING, FAILED]).phase is Phase.UNAVAILABLE


@pytest.mark.parametrize(
    "order", sorted(set(permutations([FAILED, FAILED, *[MISSING] * 3])), key=repr)
)
def test_nodes_that_do_not_answer_hide_no_loss_that_a_quorum_shows(order: list[Vote]) -> None:
    assert extended(order).phase is Phase.GONE


def test_missing_keys_are_collected_also_after_the_decision() -> None:
    round_ = extended([MISSING, ACK, ACK, ACK, MISSING])
    assert (round_.phase, round_.missing) == (Phase.GRANTED, [0, 4])


def test_a_node_where_somebody_else_has_a_key_is_not_healed() -> None:
    assert extended([FOREIGN, ACK, ACK, ACK]).missing == []


def released(votes: list[Vote]) -> Phase:
    round_ = ReleaseRound(5)
    for node, vote in enumerate(votes):
        round_.vote(node, vote, SENT)
    return round_.phase


@pytest.mark.parametrize(
    ("votes", "phase"),
    [
        ([ACK, FAILED, ACK, FAILED, ACK], Phase.GRANTED),
        ([ACK, ACK, FOREIGN, FOREIGN], Phase.VOTING),
        ([ACK, ACK, FOREIGN, FOREIGN, FOREIGN], Phase.GONE),
        ([ACK, ACK, FOREIGN, FAILED, FOREIGN], Phase.UNAVAILABLE),
    ],
)
def test_a_release_counts_where_a_quorum_still_had_the_keys(
    votes: list[Vote], phase: Phase
) -> None:
    assert phase is released(votes)
