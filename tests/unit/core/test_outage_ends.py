"""When a quorum votes again is known where only quarantined nodes are missing."""

from __future__ import annotations

import pytest

from celery_redlock.core.failures import _available_in
from celery_redlock.protocol.rounds import AcquireRound
from celery_redlock.protocol.votes import Failed, Granted, Quarantined, Vote

AWAY, VOTES = Failed("away"), Granted(1, 1)


@pytest.mark.parametrize(
    ("votes", "ends"),
    [
        ([Quarantined(7.0), Quarantined(9.0)], 7.0),
        ([VOTES, Quarantined(9.0), Quarantined(7.0)], 7.0),
        ([AWAY, Quarantined(7.0)], 7.0),
        ([AWAY, AWAY], None),
    ],
)
def test_the_end_of_an_outage_of_three_nodes(votes: list[Vote], ends: float | None) -> None:
    round_ = AcquireRound(3, sent_at=0.0, ttl=30.0, drift_factor=0.01)
    for node, vote in enumerate(votes):
        round_.vote(node, vote, 0.0)
    assert _available_in(round_) == ends
