"""The most urgent that wait run first, also if a worker is killed or two of five nodes die."""

from __future__ import annotations

import pytest

from celery_redlock import Lease
from tests.acceptance.scene import Journal
from tests.acceptance.unique.brokers.conftest import HOW, KILLED, Strike
from tests.acceptance.waiters import send_waiter
from tests.acceptance.worker import Worker

#: By broker, the priorities from the most urgent one, which goes to the worker that may be killed.
URGENT_FIRST = {"redis": (0, 3, 6, 9), "rabbitmq": (9, 6, 3, 0)}


@pytest.mark.parametrize("how", HOW)
def test_with_lock_fair_the_most_urgent_messages_run_first(
    how: str,
    broker: str,
    workers: tuple[Worker, Worker],
    strike: Strike,
    key: str,
    holder: Lease,
    journal: Journal,
) -> None:
    in_order = URGENT_FIRST[broker]
    sent = {
        priority: send_waiter(workers[place % 2], key, "waiting.run_fair", priority=priority).id
        for place, priority in reversed(list(enumerate(in_order, 1)))
    }
    strike()
    holder.release()
    expected = [sent[priority] for priority in in_order]
    if how == KILLED:
        expected = expected[1::2]
    journal.wait_for("ran", len(expected))
    ran = [entry["id"] for entry in journal.of("ran")]
    assert [task_id for task_id in ran if task_id in expected] == expected
