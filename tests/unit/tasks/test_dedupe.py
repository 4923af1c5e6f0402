"""`redlock_dedupe`: every task of a worker runs a message once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Task, signals
from celery.exceptions import Reject

from celery_redlock.tasks.adoption import protect_tasks
from celery_redlock.tasks.rules.facts import Role
from tests.support.tasks import Bench
from tests.support.unique import left, mark, role, value
from tests.unit.tasks.jobs import before_next, retry_once


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(redlock_dedupe=True)
    yield bench
    bench.close()


def plain(bench: Bench, body: Any = None, **options: Any) -> Any:
    """Declare a task that knows nothing of locks, and start a worker's protection."""
    options = {"base": Task, "bind": True, **options}
    task = bench.task(body or (lambda self, *args: "ran"), **options)
    bench.app.finalize()
    protect_tasks(bench.app)
    return task


def test_the_twin_of_a_plain_task_is_ignored(bench: Bench) -> None:
    request = bench.send(plain(bench))
    assert [bench.run(request).state for _ in range(2)] == ["SUCCESS", "IGNORED"]


def test_every_task_is_protected_those_of_celery_too(bench: Bench) -> None:
    plain(bench)
    assert all(task.redlock_plan.dedupe for task in bench.app.tasks.values())


def test_a_task_that_was_registered_later_is_protected_when_the_consumer_starts_again(
    bench: Bench,
) -> None:
    plain(bench)
    late = bench.task(lambda self: None, base=Task, bind=True, name="late")
    protect_tasks(bench.app)
    request = bench.send(late)
    assert [bench.run(request).state for _ in range(2)] == ["SUCCESS", "IGNORED"]


def test_a_redlock_task_without_options_is_protected(bench: Bench) -> None:
    request = bench.send(bench.task(lambda: "ran"))
    assert [bench.run(request).state for _ in range(2)] == ["SUCCESS", "IGNORED"]
    assert value(bench) is None


def test_a_setting_that_came_after_the_task_was_bound_is_followed(bench: Bench) -> None:
    bench.app.conf.redlock_dedupe = False
    task = bench.task(lambda: "ran", lock_key="k")
    bench.app.finalize()
    bench.app.conf.redlock_dedupe = True
    protect_tasks(bench.app)
    request = bench.send(task)
    assert [bench.run(request).state for _ in range(2)] == ["SUCCESS", "IGNORED"]


def test_names_on_a_strangers_class_are_not_taken_for_options(bench: Bench) -> None:
    class Singleton(Task):
        abstract = True
        lock_expiry = 60
        lock_key = 7

    request = bench.send(plain(bench, base=Singleton))
    assert [bench.run(request).state for _ in range(2)] == ["SUCCESS", "IGNORED"]


def test_a_call_of_the_strangers_own_is_kept(bench: Bench) -> None:
    class Loud(Task):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return f"{super().__call__(*args, **kwargs)}!"

    assert bench.call(plain(bench, base=Loud)).value == "ran!"


def test_a_retry_of_a_plain_task_runs_and_its_twin_does_not(bench: Bench) -> None:
    first = bench.send(plain(bench, retry_once))
    bench.run(first)
    second = bench.receive()
    assert bench.run(second).value == "ran"
    assert [bench.run(twin).state for twin in (first, second)] == ["IGNORED", "IGNORED"]
    assert bench.queue_length == 0


def test_a_replaced_plain_task_and_its_replacement_run_once_each(bench: Bench) -> None:
    def body(self: Any, n: int = 0) -> int:
        if n == 0:
            raise self.replace(self.si(1))
        return n

    first = bench.send(plain(bench, body))
    bench.run(first)
    assert bench.run(first).state == "IGNORED"
    assert bench.run(bench.receive()).value == 1


def test_a_plain_message_that_goes_back_to_the_broker_runs_again(bench: Bench) -> None:
    runs: list[int] = []

    def body(self: Any) -> None:
        runs.append(1)
        if len(runs) == 1:
            raise Reject("later", requeue=True)

    request = bench.send(plain(bench, body))
    assert [bench.run(request).state for _ in range(3)] == ["REJECTED", "SUCCESS", "IGNORED"]


def test_a_locking_task_keeps_its_key_until_its_result_is_stored(bench: Bench) -> None:
    task = bench.task(lambda: "ran", lock_key="k", lock_at_least_for=40)
    request = bench.send(task)
    seen: list[Any] = []
    before_next(task.backend, "mark_as_done", lambda: seen.append(role(bench)))
    bench.run(request)
    assert seen == [Role.RUNNING]
    assert 20 < left(bench) <= 40
    assert role(bench, mark(bench, request)) is Role.FINISHED


def test_a_plain_task_under_apply_runs_as_often_as_it_is_called(bench: Bench) -> None:
    task = plain(bench)
    assert [task.apply(task_id="mine").get() for _ in range(2)] == ["ran", "ran"]


def test_signals_that_others_send_for_what_is_no_task_are_none_of_ours(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    plain(bench)
    for signal in (signals.task_prerun, signals.task_postrun):
        signal.send(sender="elsewhere", task_id="x", task=object())
        signal.send(sender="elsewhere", task_id="x")
    assert "Error" not in caplog.text


def test_in_a_thread_the_mark_is_finished_too(bench: Bench) -> None:
    request = bench.send(plain(bench))
    states: list[str] = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: states.append(bench.run(request).state))
        thread.start()
        thread.join()
    assert states == ["SUCCESS", "IGNORED"]
