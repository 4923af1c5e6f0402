"""How a worker's log at INFO reads where locks are contended."""

from __future__ import annotations

import re

from celery import states

from celery_redlock.testing import LocalCluster
from tests.acceptance.conftest import KeepWorker, StartWorker
from tests.acceptance.scene import Journal
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until

#: A machine that is so busy that nodes are late adds no lines to those that a test looks at.
PATIENT = {"redlock_node_timeout": 2.0}


def lines(worker: Worker, text: str) -> list[str]:
    return [line for line in worker.log.splitlines() if text in line]


def test_a_contended_requeue_is_one_line_with_key_holder_and_delay(
    keep_worker: KeepWorker, key: str, journal: Journal
) -> None:
    worker = keep_worker(conf=PATIENT)
    first = worker.send("queue_up", key)
    journal.wait_for("entered")
    second = worker.send("queue_up", key)
    wait_until(lambda: second.state == states.RETRY)
    journal.open()
    for result in (first, second):
        result.get(timeout=TIMEOUT)

    ours = lines(worker, second.id)
    between = [line for line in ours if "received" not in line and "succeeded" not in line]
    assert between
    wanted = (
        rf"Task queue_up\[{second.id}\] is requeued until its lock is free, for up to [\d.]+ s, "
        r"and gives up if it has no lock in \d+ s \(requeue \d+\): "
        rf"lock '{key}' is held by 'running {first.id} \S+ \d+'$"
    )
    assert all(re.search(wanted, line) for line in between)
    assert "redlock-meta:" not in worker.log


def test_the_last_line_of_a_skipped_task_is_the_reason(
    keep_worker: KeepWorker, key: str, journal: Journal
) -> None:
    worker = keep_worker(conf=PATIENT)
    first = worker.send("skip", key)
    journal.wait_for("entered")
    second = worker.send("skip", key)
    assert second.get(timeout=TIMEOUT) == "skipped"
    worker.wait_for_log(f"{second.id}] is skipped")
    journal.open()
    first.get(timeout=TIMEOUT)

    _, succeeded, skipped = lines(worker, second.id + "]")
    assert "succeeded in" in succeeded
    assert f"is skipped: Lock '{key}' is held by 'running {first.id} " in skipped


def test_a_redelivery_is_logged_as_another_delivery_of_its_message(
    start_worker: StartWorker, key: str, journal: Journal
) -> None:
    worker = start_worker(conf={"redlock_dedupe": True})
    first = worker.send("hold_nothing", key)
    journal.wait_for("entered")
    worker.send("hold_nothing", key, task_id=first.id)
    worker.wait_for_log("another delivery has this message: 'running ")
    journal.open()
    first.get(timeout=TIMEOUT)
    worker.wait_for_log("this delivery is ignored")
    assert "redlock-meta:" not in worker.log


def test_one_lock_node_is_logged_once_for_the_worker_and_all_its_children(
    start_worker: StartWorker, key: str
) -> None:
    with LocalCluster(1) as node:
        lock = {"lock_key": "{value}"}
        conf = {"redlock_nodes": node.urls, "redlock_tasks": {"echo": lock}, **PATIENT}
        worker = start_worker(conf=conf)
        results = [worker.send("echo", f"{key}-{number}") for number in range(12)]
        for result in results:
            result.get(timeout=TIMEOUT)
        worker.stop()
        assert len(lines(worker, node.urls[0].removeprefix("redis://"))) == 1
