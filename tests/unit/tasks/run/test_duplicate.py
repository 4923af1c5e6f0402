"""A duplicate that had to be sent is judged by the call that it repeats."""

from __future__ import annotations

from typing import Any

import pytest
from celery import uuid

from celery_redlock import is_skipped
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.rules.facts import Role
from tests.support.tasks import Bench
from tests.support.unique import QUEUE, WINDOW, declare, free, mark, owned_by
from tests.unit.tasks.jobs import counting, retry_once


def sent_twice(bench: Bench, task: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Send a call, and its duplicate that somebody waits for."""
    return bench.send(task), bench.send(task, task_id=uuid())


def test_it_carries_whose_duplicate_it_is(bench: Bench, mode: str) -> None:
    first, again = sent_twice(bench, declare(bench, lock_mode=mode))
    original = Envelope.read(again).duplicate_of
    assert original.task_id == first["id"]
    assert mark(bench, first).endswith(original.marker)


@pytest.mark.parametrize("when", ["before the first has begun", "when it has finished"])
def test_it_is_skipped(bench: Bench, mode: str, when: str, no_waiting: None) -> None:
    """At once, for it does not wait for a lock that it will not take."""
    task, runs = counting(declare, bench, lock_mode=mode, lock_wait=30)
    first, again = sent_twice(bench, task)
    if when == "when it has finished":
        bench.run(first)
    assert is_skipped(bench.run(again).value)
    if when == "before the first has begun":
        bench.run(first)
    assert runs == [first["id"]]


def test_it_is_skipped_while_the_first_runs(bench: Bench, mode: str) -> None:
    found: list[Any] = []
    task = declare(bench, lambda self: found.append(bench.run(again).value), lock_mode=mode)
    first, again = sent_twice(bench, task)
    bench.run(first)
    assert [is_skipped(value) for value in found] == [True]


def test_a_second_delivery_of_a_skipped_one_is_ignored(bench: Bench) -> None:
    first, again = sent_twice(bench, declare(bench))
    bench.run(first)
    assert [bench.run(again).state for _ in range(2)] == ["SUCCESS", "IGNORED"]


def test_it_runs_when_the_first_was_revoked(bench: Bench, mode: str, revoked: list[str]) -> None:
    task, runs = counting(declare, bench, lock_mode=mode)
    first, again = sent_twice(bench, task)
    task.revoke_queued()
    assert bench.run(again).value == "ran"
    bench.run(first)
    assert runs == [again["id"]]


def test_it_runs_when_nobody_knows_of_the_first(bench: Bench, mode: str) -> None:
    task, runs = counting(declare, bench, lock_mode=mode)
    _, again = sent_twice(bench, task)
    free(bench)
    free(bench, QUEUE)
    assert bench.run(again).value == "ran"
    assert runs == [again["id"]]


def test_it_runs_when_the_first_has_failed_without_its_body(bench: Bench) -> None:
    task, runs = counting(
        declare, bench, lock_mode="until_and_while_executing", lock_on_conflict="raise"
    )
    first, again = sent_twice(bench, task)
    other = owned_by(bench, "other")
    assert bench.run(first).state == "FAILURE"
    other.release()
    assert bench.run(again).value == "ran"
    assert runs == [again["id"]]


def test_it_waits_its_turn_behind_another_task_when_the_first_is_gone(bench: Bench) -> None:
    _, again = sent_twice(bench, declare(bench, lock_key=["k", "j"]))
    free(bench)
    free(bench, "redlock:j")
    owned_by(bench, "other")
    assert bench.run(again).state == "RETRY"
    before, after = Envelope.read(again), Envelope.read(bench.receive())
    assert after.duplicate_of == before.duplicate_of is not None


def test_a_function_decides_about_it_in_the_worker(bench: Bench) -> None:
    asked: list[Any] = []

    def decide(task: Any, error: Any) -> str:
        asked.append((task.name, error.key))
        return "existing"

    task, _ = counting(declare, bench, lock_on_duplicate=decide)
    first, again = sent_twice(bench, task)
    bench.run(first)
    assert is_skipped(bench.run(again).value)
    assert asked == [("job", "k")]


def test_a_retry_of_one_that_ran_is_no_duplicate(bench: Bench) -> None:
    _, again = sent_twice(bench, declare(bench, retry_once))
    free(bench)
    assert bench.run(again).state == "RETRY"
    assert bench.run(bench.receive()).value == "ran"


def test_the_window_of_the_first_does_not_let_it_run(bench: Bench) -> None:
    task, runs = counting(declare, bench, lock_mode="until_expired", lock_window=WINDOW)
    first = bench.send(task)
    bench.run(first)
    again = bench.send(task, task_id=uuid())
    free(bench)
    assert is_skipped(bench.run(again).value)
    assert runs == [first["id"]]


def test_a_call_of_another_task_with_the_key_is_no_repetition(bench: Bench) -> None:
    bench.send(declare(bench))
    other = declare(bench, name="other")
    request = bench.send(other, task_id=uuid())
    assert Envelope.read(request).duplicate_of is None
    free(bench)
    assert bench.run(request).value == "ran"


def test_a_function_that_lets_the_newer_one_count_lets_it_run_after_the_first(bench: Bench) -> None:
    task, runs = counting(declare, bench, lock_on_duplicate=lambda task, error: "replace")
    first, again = sent_twice(bench, task)
    assert bench.run(again).state == "RETRY"
    bench.run(first)
    bench.run(bench.receive())
    assert runs == [first["id"], again["id"]]


def test_it_is_put_back_while_the_first_is_being_ended_without_its_body(bench: Bench) -> None:
    task, _ = counting(declare, bench)
    first, again = sent_twice(bench, task)
    free(bench)
    owned_by(bench, first["id"], Role.QUEUED, mark(bench, first))
    assert bench.run(again).state == "RETRY"
