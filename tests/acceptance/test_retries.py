"""
A lease that is lost around a task's retry costs no task.

`RETRIES=400` runs each with as many retries; the default keeps a run of all tests short.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.acceptance.matrix import row
from tests.acceptance.worker import Worker
from tests.support.waiting import PATIENCE, wait_until

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
        PATIENCE + RETRIES / 10,
        message=lambda: f"all of {len(results)} to end; {lost()} are lost",
    )
    assert Counter(result.result for result in results) == {ATTEMPTS: len(results)}
