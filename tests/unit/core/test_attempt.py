"""What an attempt knows about the reservation that it took over."""

from __future__ import annotations

import pytest

from celery_redlock.core.attempt import Attempt
from celery_redlock.protocol import AcquireRound, Failed, Vote
from celery_redlock.protocol.votes import ACKNOWLEDGED, FOREIGN
from celery_redlock.transport import AckedNodes, MemoryTransport
from celery_redlock.transport.memory import MemoryNode


@pytest.mark.parametrize(
    ("vote", "left"),
    [(ACKNOWLEDGED, set()), (FOREIGN, {1}), (Failed("no answer"), {1}), (None, {1})],
)
def test_only_a_node_that_had_the_keys_has_given_the_reservation_up(
    vote: Vote | None, left: set[int]
) -> None:
    acked = AckedNodes()
    acked.record_vote(0, ACKNOWLEDGED, 0.0)
    acked.record_vote(1, vote, 0.0)
    round_ = AcquireRound(2, sent_at=0.0, ttl=1.0, drift_factor=0.01)
    channel = MemoryTransport([MemoryNode("0"), MemoryNode("1")])

    attempt = Attempt("owner", round_, channel, frozenset(), acked)

    assert set(attempt.nodes_not_taken_over()) == left
