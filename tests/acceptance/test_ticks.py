"""Ticks of a schedule, as several beats send them, and runs that a newer one replaces."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
from celery.exceptions import WorkerLostError
from celery.result import AsyncResult

from celery_redlock.errors import LeaseLost
from celery_redlock.tasks.message.envelope import HEADER, Envelope, fresh_nonce
from celery_redlock.tasks.message.tick import Tick
from tests.acceptance.matrix import row
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until


def beat(worker: Worker, task: str, key: str, due: float) -> AsyncResult:
    """Send a task as one of several beats does for a tick."""
    tick = Tick(entry=f"entry of {key}", due=due)
    header = Envelope(nonce=fresh_nonce(), tick=tick).write()
    return worker.send(task, key, headers={HEADER: header})


def runs(journal: Journal) -> list[Any]:
    return [entry["id"] for entry in journal.of("entered")]


def test_of_the_messages_of_several_beats_one_runs(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    due = time.time()
    for _ in range(3):
        beat(worker, "hold", key, due)
    entered = journal.wait_for("entered")
    journal.open()
    assert worker.app.AsyncResult(entered["id"]).get(timeout=TIMEOUT) == "held"
    wait_until(lambda: worker.queue_is_empty, message="no message to be left")
    assert runs(journal) == [entered["id"]]
    lock.wait_until_gone()


def test_a_tick_whose_process_is_killed_is_run_by_another_beats_message(
    worker: Worker, key: str, journal: Journal
) -> None:
    due = time.time()
    first, copy = (beat(worker, "hold_shortly", key, due) for _ in range(2))
    entered = journal.wait_for("entered")

    os.kill(entered["pid"], signal.SIGKILL)

    results = {result.id: result for result in (first, copy)}
    with pytest.raises(WorkerLostError):
        results.pop(entered["id"]).get(timeout=TIMEOUT)
    journal.open()
    (other,) = results.values()
    assert other.get(timeout=TIMEOUT) == "held"
    assert runs(journal) == [entered["id"], other.id]


@row("asked to stop by a newer call")
def test_a_run_that_is_replaced_is_interrupted_and_has_ended_before_the_newer_begins(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    now = time.time()
    older = beat(worker, "give_way", key, now)
    journal.wait_for("entered")
    newer = beat(worker, "give_way", key, now + 1)
    assert journal.wait_for("asked")["why"] == "a newer call asked this one to stop"

    # Renewed at a third of the TTL: the fourth is beyond the end that the lost lease had.
    lock.wait_for_renewals(4)
    assert runs(journal) == [older.id]

    journal.open("unwound")
    journal.wait_for("entered", 2)
    assert [entry["event"] for entry in journal.entries][-2:] == ["unwound", "entered"]
    journal.open()
    assert newer.get(timeout=TIMEOUT) == "held"
    with pytest.raises(LeaseLost):
        older.get(timeout=TIMEOUT)
    assert runs(journal) == [older.id, newer.id]
    lock.wait_until_gone()
