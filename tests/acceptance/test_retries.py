"""
A lease that is lost around a task's retry costs no task.

`RETRIES=400` runs each with as many retries; the default keeps a run of all tests short.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.acceptance.conftest import PauseNodes
from tests.acceptance.matrix import row
from tests.acceptance.scene import Journal
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until

#: How often a task sends itself again, and how often that happens in each test.
ATTEMPTS = 3
RETRIES = int(os.environ.get("RETRIES", "60"))


@row("lease lost while a retry or replacement is sent")
@pytest.mark.parametrize(
    "task", ["retry_on_check", "retry_unique", "retry_by_hand", "replace_when_lost"]
)
def test_no_task_is_lost_whose_lease_is_lost_while_it_is_sent_again(
    worker: Worker, key: str, task: str
) -> None:
    results = [
        worker.send(task, f"{key}-{number}", ATTEMPTS) for number in range(RETRIES // ATTEMPTS)
    ]

    def lost() -> int:
        return sum(not result.ready() for result in results)

    wait_until(
        lambda: not lost(),
        TIMEOUT + RETRIES / 10,
        message=lambda: f"all of {len(results)} to end; {lost()} are lost",
    )
    assert Counter(result.result for result in results) == {ATTEMPTS: len(results)}


@row("lease lost while a retry or replacement is sent")
def test_no_task_is_lost_that_sends_itself_again_when_too_many_nodes_stop(
    worker: Worker, pool: str, key: str, urls: dict[str, str], pause_nodes: PauseNodes
) -> None:
    keys = [f"{key}-{number}" for number in range(1 if pool == "solo" else 4)]
    journals = [Journal(each, urls["journal"]) for each in keys]
    results = [worker.send("outlast", each) for each in keys]
    for journal in journals:
        journal.wait_for("entered")

    resume = pause_nodes(0, 1, 2)
    wait_until(
        lambda: all(result.state == "RETRY" for result in results),
        message=lambda: f"each to be sent again: {[result.state for result in results]}",
    )
    resume()

    for result, journal in zip(results, journals, strict=True):
        assert result.get(timeout=TIMEOUT) == "done by the retry"
        journal.close()
