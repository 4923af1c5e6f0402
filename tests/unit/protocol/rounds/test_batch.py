"""Votes on the extensions of several leases in one command."""

from __future__ import annotations

from celery_redlock.protocol.rounds import BatchRound, ExtendRound, Phase
from celery_redlock.protocol.votes import Acknowledged, Failed, LeaseVotes, NotHeld

ACK = Acknowledged()
MISSING = NotHeld(missing=True)
NOW = 100.0


def batch(leases: int = 2) -> BatchRound:
    return BatchRound(
        [
            ExtendRound(5, sent_at=NOW, ttl=10.0, drift_factor=0.01, valid_until=NOW + 4)
            for _ in range(leases)
        ]
    )


def phases(round_: BatchRound) -> list[Phase]:
    return [own.phase for own in round_.rounds]


def test_it_is_decided_when_each_lease_is() -> None:
    round_ = batch()
    round_.vote(0, LeaseVotes((ACK, ACK)), NOW)
    round_.vote(1, LeaseVotes((ACK, ACK)), NOW)
    assert round_.vote(2, LeaseVotes((ACK, MISSING)), NOW) is Phase.VOTING
    assert round_.vote(3, LeaseVotes((ACK, ACK)), NOW) is Phase.GRANTED


def test_a_node_that_fails_fails_for_each_lease() -> None:
    round_ = batch()
    for node in range(3):
        round_.vote(node, Failed("no answer"), NOW)
    assert phases(round_) == [Phase.UNAVAILABLE, Phase.UNAVAILABLE]


def test_a_reply_for_fewer_leases_counts_for_none() -> None:
    round_ = batch()
    for node in range(3):
        round_.vote(node, LeaseVotes((ACK,)), NOW)
    assert phases(round_) == [Phase.UNAVAILABLE, Phase.UNAVAILABLE]


def test_a_late_reply_still_names_the_nodes_that_lack_keys() -> None:
    round_ = batch()
    for node in range(4):
        round_.vote(node, LeaseVotes((ACK, ACK)), NOW)
    round_.vote(4, LeaseVotes((ACK, MISSING)), NOW)
    assert [own.missing for own in round_.rounds] == [[], [4]]
