"""What is logged of lost quorums and quarantined nodes, and that each is logged once."""

from __future__ import annotations

import itertools

from celery_redlock.core.outage import (
    NODE_MOVES,
    QUORUM_MOVES,
    Change,
    Node,
    Notice,
    Outage,
    Quorum,
    Seen,
    Sign,
)
from celery_redlock.protocol.votes import Failed, Granted, Quarantined, Refused, Vote

VOTE, HELD, SILENT, SITTING = Granted(1, 1), Refused(()), Failed("silent"), Quarantined(5.0)
STEPS = ("task", "late report", "quorum", "no quorum")
#: Seconds from the begin of a poll to its end.
POLL_TIME = 0.4


def changes(notices: list[Notice]) -> list[Change]:
    return [notice.change for notice in notices]


def poll(outage: Outage, at: float, *votes: Vote | None) -> list[Notice]:
    named = {f"node-{number}": vote for number, vote in enumerate(votes)}
    return outage.polled(at, at + POLL_TIME, named, len(votes) // 2 + 1)


def step(outage: Outage, at: float, kind: str) -> list[Change]:
    if kind == "task":
        return changes(outage.task_failed(at))
    if kind == "late report":  # of a task that failed while the step before went on
        return changes(outage.task_failed(at - 1.0 + POLL_TIME / 2))
    votes = (VOTE, VOTE, SILENT) if kind == "quorum" else (VOTE, SILENT, SILENT)
    return changes(poll(outage, at, *votes))


def test_the_tables_have_a_row_for_every_state_and_sign() -> None:
    assert set(QUORUM_MOVES) == set(itertools.product(Quorum, Sign))
    assert set(NODE_MOVES) == set(itertools.product(Node, Seen))


def test_the_loss_and_the_return_of_a_quorum_take_turns() -> None:
    for steps in itertools.product(STEPS, repeat=5):
        outage = Outage()
        logged = [
            change
            for at, kind in enumerate(steps)
            for change in step(outage, float(at), kind)
            if change in (Change.QUORUM_LOST, Change.QUORUM_BACK)
        ]
        expected = itertools.cycle((Change.QUORUM_LOST, Change.QUORUM_BACK))
        assert logged == [change for _, change in zip(logged, expected, strict=False)], steps
        is_lost = outage.quorum in (Quorum.LOST, Quorum.UNMET)
        assert is_lost == (logged[-1:] == [Change.QUORUM_LOST]), steps


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


def test_the_first_task_that_meets_a_known_loss_is_logged_and_no_other() -> None:
    outage = Outage()
    for at in (1.0, 2.0):
        poll(outage, at, VOTE, SILENT, SILENT)
    assert changes(outage.task_failed(3.0)) == [Change.QUORUM_MET]
    assert outage.task_failed(4.0) == []


def test_a_node_that_does_not_vote_twice_is_logged_once_and_so_is_its_return() -> None:
    outage = Outage()
    assert poll(outage, 1.0, VOTE, VOTE, SILENT) == []
    silent = poll(outage, 2.0, VOTE, VOTE, None)
    assert silent == [Notice(change=Change.NODE_SILENT, node="node-2")]
    assert poll(outage, 3.0, VOTE, VOTE, SILENT) == []
    assert poll(outage, 4.0, VOTE, VOTE, HELD) == [Notice(change=Change.NODE_BACK, node="node-2")]
    assert poll(outage, 5.0, VOTE, VOTE, VOTE) == []


def test_a_node_that_votes_again_after_one_poll_is_not_logged() -> None:
    outage = Outage()
    for at in range(6):
        assert poll(outage, float(at), VOTE, VOTE, SILENT if at % 2 else VOTE) == []


def test_nodes_that_a_lost_quorum_names_have_no_line_of_their_own() -> None:
    outage = Outage()
    assert poll(outage, 1.0, VOTE, SILENT, SILENT) == []
    assert changes(poll(outage, 2.0, VOTE, SILENT, SILENT)) == [Change.QUORUM_LOST]
    assert changes(poll(outage, 3.0, VOTE, VOTE, VOTE)) == [Change.QUORUM_BACK]


def test_a_silent_minority_is_no_reason_to_hurry() -> None:
    outage = Outage()
    poll(outage, 1.0, VOTE, VOTE, SILENT)
    assert outage.is_urgent
    poll(outage, 2.0, VOTE, VOTE, SILENT)
    assert not outage.is_urgent


def test_a_poll_ends_no_outage_that_a_task_has_met_since_the_poll_before() -> None:
    outage = Outage()
    outage.task_failed(3.0)
    assert poll(outage, 3.5, VOTE, VOTE, VOTE) == []
    assert changes(poll(outage, 4.5, VOTE, VOTE, VOTE)) == [Change.QUORUM_BACK]


def test_a_report_that_is_older_than_a_quorum_s_votes_proves_no_loss() -> None:
    outage = Outage()
    poll(outage, 5.0, VOTE, VOTE, VOTE)
    assert outage.task_failed(4.9) == []


def test_a_task_that_failed_during_the_poll_that_ended_an_outage_begins_no_other() -> None:
    outage = Outage()
    outage.task_failed(3.0)
    poll(outage, 4.0, SILENT, SILENT, VOTE)
    assert changes(poll(outage, 5.0, VOTE, VOTE, VOTE)) == [Change.QUORUM_BACK]
    assert [outage.task_failed(5.0 + POLL_TIME / 2) for _ in range(2)] == [[], []]
    assert poll(outage, 6.0, VOTE, VOTE, VOTE) == []


def test_a_task_that_failed_during_a_poll_with_a_quorum_hurries_the_next_poll() -> None:
    outage = Outage()
    poll(outage, 5.0, VOTE, VOTE, VOTE)
    outage.task_failed(5.0 + POLL_TIME / 2)
    assert outage.is_urgent
    assert changes(poll(outage, 6.0, VOTE, SILENT, SILENT)) == [Change.QUORUM_LOST]


def test_nodes_on_which_another_worker_holds_the_key_of_the_poll_vote() -> None:
    outage = Outage()
    assert [poll(outage, at, HELD, HELD, HELD) for at in (1.0, 2.0)] == [[], []]


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
