"""Tasks with one key: a call of one is no duplicate of another's, in no place."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from celery import chain, states

from celery_redlock import is_duplicate
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.unique.publisher import Publisher
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until

FIRST = "unique.until_executed"
OTHERS = ("unique.until_executed.short", "unique.raise", "unique.replace", "unique.decide")


@pytest.mark.parametrize("other", OTHERS)
def test_a_call_runs_after_another_tasks_message_that_waited(
    keep_away: Callable[[], None], publisher: Publisher, journal: Journal, lock: Lock, other: str
) -> None:
    journal.open()
    first = publisher.send(FIRST, journal.key)
    assert f" {first.id} " in lock.wait_until_held()
    second = publisher.send(other, journal.key)
    assert not is_duplicate(second)
    assert f" {first.id} " in (lock.owner or "")
    keep_away()
    assert [first.get(timeout=TIMEOUT), second.get(timeout=TIMEOUT)] == ["held", "held"]


@pytest.mark.parametrize("other", OTHERS)
def test_a_call_runs_after_another_tasks_body(
    publisher: Publisher, journal: Journal, other: str
) -> None:
    first = publisher.send(FIRST, journal.key)
    journal.wait_for("entered")
    second = publisher.send(other, journal.key)
    assert not is_duplicate(second)
    wait_until(lambda: second.state == states.RETRY, message="the other task to wait")
    journal.open()
    assert [first.get(timeout=TIMEOUT), second.get(timeout=TIMEOUT)] == ["held", "held"]


@pytest.mark.parametrize("how", ["retry", "replace_by_itself"])
def test_a_call_runs_after_all_of_another_tasks_work(
    publisher: Publisher, journal: Journal, how: str
) -> None:
    journal.open()
    first = publisher.send(FIRST, journal.key, how)
    second = publisher.send("unique.raise", journal.key)
    assert [first.get(timeout=TIMEOUT), second.get(timeout=TIMEOUT)] == ["held", "held"]


def test_each_task_of_a_chain_with_one_key_runs(publisher: Publisher, journal: Journal) -> None:
    journal.open()
    tasks = (FIRST, "unique.raise", "unique.replace")
    steps = chain(*(publisher.step(task, journal.key) for task in tasks))
    assert steps.apply_async().get(timeout=TIMEOUT) == "held"
    assert len(journal.of("entered")) == 3


def test_a_worker_names_at_its_start_the_tasks_that_can_have_one_key(worker: Worker) -> None:
    (line,) = (line for line in worker.log.splitlines() if "can have the same key" in line)
    assert all(name in line for name in (FIRST, "unique.raise", "unique.replace"))
    assert re.search(r"lock_key='unique\.[\w.]+:\{key\}'", line)
