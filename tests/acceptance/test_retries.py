"""
A lease that is lost around a task's retry costs no task.

`RETRIES=400` runs each with as many retries; the default keeps a run of all tests short.
"""

from __future__ import annotations

import os

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
    worker: Worker, key: str, journal: Journal, task: str
) -> None:
    sent = set(range(RETRIES // ATTEMPTS))
    for number in sent:
        worker.send(task, key, number, ATTEMPTS)

    def lost() -> set[int]:
        return sent - {entry["number"] for entry in journal.of("done")}

    wait_until(
        lambda: not lost(),
        TIMEOUT + RETRIES / 10,
        message=lambda: f"all of {len(sent)} to end; lost: {lost()}",
    )
    assert {entry["after"] for entry in journal.of("done")} == {ATTEMPTS}


@row("lease lost while a retry or replacement is sent")
def test_no_task_is_lost_that_sends_itself_again_when_too_many_nodes_stop(
    worker: Worker, pool: str, key: str, journal: Journal, pause_nodes: PauseNodes
) -> None:
    count = 1 if pool == "solo" else 4
    results = [worker.send("outlast", key, number) for number in range(count)]
    sent = {result.id for result in results}

    def all_have(event: str) -> bool:
        return {entry["id"] for entry in journal.of(event)} == sent

    wait_until(lambda: all_have("entered"), message=lambda: f"{sent} in {journal.entries}")

    resume = pause_nodes(0, 1, 2)
    wait_until(
        lambda: all(result.state == "RETRY" for result in results),
        message=lambda: f"each to be sent again: {[result.state for result in results]}",
    )
    resume()
    journal.open()

    wait_until(lambda: all_have("left"), message=lambda: f"{sent} in {journal.entries}")
