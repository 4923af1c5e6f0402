"""
A worker loses its broker while a body runs: the broker delivers the message again.

Under `acks_late` that is what a broker is for. The body of the first copy goes on, though, so the
second one has to wait for it, and then there is nothing left to do for it.
"""

from __future__ import annotations

from typing import Any

import celery
import pytest

from tests.acceptance.conftest import StartWorker
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.unique.brokers.conftest import Cable
from tests.acceptance.unique.conftest import IMPATIENT, MakePublisher
from tests.acceptance.unique.publisher import Publisher
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until

DEDUPE = {"redlock_dedupe": True}
# The second copy is looked at, put back, comes again, and so on. Celery 5.4 hands nothing to its
# pool after it has connected anew until the bodies that run then have ended.
DELIVERIES = 4 if celery.VERSION >= (5, 5) else 2
ONE_OF_OURS, SOMEBODY_ELSES = "unique.until_executed.late", "unique.plain.late"


@pytest.fixture(params=[ONE_OF_OURS, pytest.param(SOMEBODY_ELSES, marks=pytest.mark.full)])
def task(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def settings(task: str, broker: str) -> dict[str, Any]:
    return {
        # A plain task takes part only where all do.
        **(DEDUPE if task == SOMEBODY_ELSES else {}),
        # Redis gives a message back after a while; RabbitMQ at once.
        **(IMPATIENT if broker == "redis" else {}),
        "broker_connection_max_retries": None,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
    }


@pytest.fixture
def worker(start_worker: StartWorker, cable: Cable, settings: dict[str, Any]) -> Worker:
    worker = start_worker(conf={**settings, "broker_url": cable.url})
    return worker.wait_until_ready()


@pytest.fixture
def publisher(worker: Worker, make_publisher: MakePublisher, settings: dict[str, Any]) -> Publisher:
    return make_publisher(worker.name, **settings)


def deliveries(journal: Journal, result: Any) -> list[bool]:
    """For each delivery of a task's message, whether the broker says it is not the first."""
    return [e["redelivered"] for e in journal.of("delivered") if e["id"] == result.id]


def test_a_message_that_comes_again_after_a_lost_connection_does_not_run_beside_its_first_copy(
    task: str, cable: Cable, worker: Worker, publisher: Publisher, lock: Lock, journal: Journal
) -> None:
    call_back = publisher.step("unique.tell", journal.key)
    result = publisher.send(task, journal.key, link=call_back)
    journal.wait_for("entered")

    cable.pull()

    wait_until(
        lambda: True in deliveries(journal, result),
        message=lambda: f"a second delivery: {journal.entries}",
    )
    wait_until(lambda: len(deliveries(journal, result)) >= DELIVERIES)
    assert len(journal.of("entered")) == 1
    journal.open()
    assert result.get(timeout=TIMEOUT) == "held"
    journal.wait_for("called back")
    wait_until(lambda: worker.queue_is_empty, message="no message to be left")
    assert len(journal.of("entered")) == 1
    assert len(journal.of("called back")) == 1
    lock.wait_until_gone()
