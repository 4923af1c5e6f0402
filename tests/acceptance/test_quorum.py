"""What a task does when too few lock nodes answer."""

from __future__ import annotations

import pytest
from celery import states

from celery_redlock.errors import QuorumUnavailable
from tests.acceptance.conftest import PauseNodes
from tests.acceptance.matrix import row
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until


@row("no quorum")
def test_a_task_comes_back_until_a_quorum_answers(
    worker: Worker, key: str, lock: Lock, journal: Journal, pause_nodes: PauseNodes
) -> None:
    journal.open()
    resume = pause_nodes(0, 1, 2)
    result = worker.send("come_back", key)
    wait_until(lambda: result.state == states.RETRY, message="the task to be requeued")
    assert journal.entries == []

    resume()

    assert result.get(timeout=TIMEOUT) == "held"
    assert journal.wait_for("entered")["id"] == result.id
    lock.wait_until_gone()


@row("no quorum")
def test_a_task_that_needs_a_quorum_fails_and_names_the_nodes_that_did_not_answer(
    worker: Worker, key: str, journal: Journal, pause_nodes: PauseNodes
) -> None:
    pause_nodes(0, 1, 2)

    result = worker.send("need_quorum", key)

    with pytest.raises(QuorumUnavailable) as raised:
        result.get(timeout=TIMEOUT)
    assert len(raised.value.nodes) >= 3
    assert journal.entries == []


@row("no quorum")
def test_a_task_that_may_run_unlocked_runs_without_a_lease(
    worker: Worker, key: str, journal: Journal, pause_nodes: PauseNodes
) -> None:
    journal.open()
    pause_nodes(0, 1, 2)

    result = worker.send("run_anyway", key)

    assert result.get(timeout=TIMEOUT) == "held"
    entered = journal.wait_for("entered")
    assert (entered["owner"], entered["token"]) == (None, None)


@row("success")
def test_a_task_runs_as_ever_while_two_of_five_nodes_are_stopped(
    worker: Worker, key: str, journal: Journal, pause_nodes: PauseNodes
) -> None:
    journal.open()
    pause_nodes(1, 3)

    result = worker.send("hold", key)

    assert result.get(timeout=TIMEOUT) == "held"
    assert journal.wait_for("entered")["token"]
