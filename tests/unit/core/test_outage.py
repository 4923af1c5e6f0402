"""What is logged of lost quorums and quarantined nodes, and that each is logged once."""

from __future__ import annotations

import itertools

import pytest

from celery_redlock.core.outage import QUORUM_MOVES, Change, Notice, Outage, Quorum, Sign
from celery_redlock.protocol import Failed, Granted, Quarantined, Refused, Vote

VOTE, HELD, SILENT, SITTING = Granted(1, 1), Refused(()), Failed("silent"), Quarantined(5.0)
STEPS = ("task", "quorum", "no quorum")


def changes(notices: list[Notice]) -> list[Change]:
    return [notice.change for notice in notices]


def poll(outage: Outage, at: float, *votes: Vote) -> list[Notice]:
    named = {f"node-{number}": vote for number, vote in enumerate(votes)}
    return outage.polled(at, named, len(votes) // 2 + 1)


def step(outage: Outage, at: float, kind: str) -> list[Change]:
    if kind == "task":
        return changes(outage.task_failed(at))
    votes = (VOTE, VOTE, SILENT) if kind == "quorum" else (VOTE, SILENT, SILENT)
    return changes(poll(outage, at, *votes))


def test_the_table_has_a_row_for_every_state_and_sign() -> None:
    assert set(QUORUM_MOVES) == set(itertools.product(Quorum, Sign))


@pytest.mark.parametrize("steps", list(itertools.product(STEPS, repeat=5)), ids="-".join)
def test_the_loss_and_the_return_of_a_quorum_take_turns(steps: tuple[str, ...]) -> None:
    outage = Outage()
    logged = [change for at, kind in enumerate(steps) for change in step(outage, float(at), kind)]
    expected = itertools.cycle((Change.QUORUM_LOST, Change.QUORUM_BACK))
    assert logged == [change for _, change in zip(logged, expected, strict=False)]
    assert (outage.quorum is Quorum.LOST) == (logged[-1:] == [Change.QUORUM_LOST])


def test_a_task_without_a_quorum_is_logged_at_once_and_only_the_first() -> None:
    outage = Outage()
    assert outage.task_failed(3.0) == [Notice(change=Change.QUORUM_LOST, seconds=3.0)]
    assert outage.task_failed(3.1) == []


def test_one_poll_without_a_quorum_proves_nothing() -> None:
    outage = Outage()
    assert poll(outage, 1.0, VOTE, SILENT, SILENT) == []
    assert poll(outage, 2.0, VOTE, VOTE, SILENT) == []


def test_a_second_poll_without_a_quorum_is_logged_with_the_time_of_the_first() -> None:
    outage = Outage()
    poll(outage, 1.0, VOTE, SILENT, SILENT)
    lost = poll(outage, 2.0, VOTE, SILENT, SILENT)
    assert lost == [Notice(change=Change.QUORUM_LOST, seconds=1.0)]


def test_the_return_names_how_long_the_quorum_was_lost() -> None:
    outage = Outage()
    outage.task_failed(3.0)
    poll(outage, 4.0, SILENT, SILENT, VOTE)
    assert poll(outage, 9.5, VOTE, VOTE, SILENT) == [Notice(change=Change.QUORUM_BACK, seconds=6.5)]


def test_a_poll_ends_no_outage_that_a_task_has_met_since_the_poll_before() -> None:
    outage = Outage()
    outage.task_failed(3.0)
    assert poll(outage, 3.5, VOTE, VOTE, VOTE) == []
    assert changes(poll(outage, 4.5, VOTE, VOTE, VOTE)) == [Change.QUORUM_BACK]


def test_a_report_that_is_older_than_a_quorum_s_votes_proves_no_loss() -> None:
    outage = Outage()
    poll(outage, 5.0, VOTE, VOTE, VOTE)
    assert outage.task_failed(4.9) == []


def test_nodes_on_which_another_worker_holds_the_key_of_the_poll_vote() -> None:
    outage = Outage()
    assert [poll(outage, at, HELD, HELD, SILENT) for at in (1.0, 2.0)] == [[], []]


def test_a_quarantined_node_is_logged_once_with_the_seconds_left_and_once_when_it_votes() -> None:
    outage = Outage()
    (notice,) = poll(outage, 1.0, VOTE, VOTE, SITTING)
    assert notice == Notice(change=Change.NODE_QUARANTINED, node="node-2", seconds=5.0)
    assert poll(outage, 2.0, VOTE, VOTE, SITTING) == []
    assert poll(outage, 3.0, VOTE, VOTE, SILENT) == []
    assert poll(outage, 4.0, VOTE, VOTE, SITTING) == []
    assert poll(outage, 5.0, VOTE, VOTE, HELD) == [Notice(change=Change.NODE_VOTES, node="node-2")]
    assert poll(outage, 6.0, VOTE, VOTE, VOTE) == []


def test_nodes_that_are_all_quarantined_lose_the_quorum_as_well() -> None:
    outage = Outage()
    assert changes(poll(outage, 1.0, SITTING, SITTING, SITTING)) == [Change.NODE_QUARANTINED] * 3
    assert changes(poll(outage, 2.0, SITTING, SITTING, SITTING)) == [Change.QUORUM_LOST]
    assert changes(poll(outage, 7.0, VOTE, VOTE, SITTING)) == [
        Change.NODE_VOTES,
        Change.NODE_VOTES,
        Change.QUORUM_BACK,
    ]
