"""What is sent while its lock is taken by a task that does the same, and what its sender gets."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock import is_duplicate
from celery_redlock.core import client_of
from celery_redlock.errors import ConfigurationError, DuplicateTask
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.message.owner_label import label_for
from celery_redlock.tasks.rules.facts import Role
from tests.support.events import counters
from tests.support.tasks import Bench
from tests.support.unique import KEY, declare, owned_by


def test_a_duplicate_is_not_sent_and_its_result_is_the_existing_tasks(bench: Bench) -> None:
    task = declare(bench)
    first = task.delay()
    before = counters()["task_duplicate"]
    second = task.delay()
    assert (second.id, is_duplicate(second), bench.queue_length) == (first.id, True, 1)
    assert counters()["task_duplicate"] - before == 1


def test_a_duplicate_of_a_running_task_points_at_it(bench: Bench) -> None:
    owned_by(bench, "runner")
    assert declare(bench).delay().id == "runner"


def test_calls_with_other_keys_are_no_duplicates(bench: Bench) -> None:
    task = bench.task(lambda n: None, lock_key="{n}", lock_mode="until_executed")
    task.delay(1)
    task.delay(2)
    assert bench.queue_length == 2


def test_positional_named_and_defaulted_calls_are_duplicates_of_each_other(bench: Bench) -> None:
    def body(a: int, b: int = 2) -> None: ...

    task = bench.task(body, lock_mode="until_executed")
    ids = {task.delay(1).id, task.delay(a=1).id, task.delay(1, b=2).id}
    assert (len(ids), bench.queue_length) == (1, 1)


def test_policy_raise_refuses_a_duplicate_and_names_the_existing_task(bench: Bench) -> None:
    task = declare(bench, lock_on_duplicate="raise")
    first = task.delay()
    with pytest.raises(DuplicateTask, match="is queued already") as caught:
        task.delay()
    assert caught.value.task_id == first.id
    assert caught.value.result.id == first.id
    assert bench.queue_length == 1


def test_a_function_decides_with_the_task_and_the_error(bench: Bench) -> None:
    asked: list[Any] = []

    def decide(task: Any, error: Any) -> str:
        asked.append((task.name, error.key))
        return "raise"

    task = declare(bench, lock_on_duplicate=decide)
    task.delay()
    with pytest.raises(DuplicateTask):
        task.delay()
    assert asked == [("job", "k")]


@pytest.mark.parametrize("answer", [None, "skip", "requeue", 7, ["existing"]])
def test_a_function_that_answers_nonsense_is_told_so(bench: Bench, answer: Any) -> None:
    task = declare(bench, lock_on_duplicate=lambda task, error: answer)
    task.delay()
    with pytest.raises(
        ConfigurationError, match="It must return one of 'existing', 'replace', 'raise'"
    ):
        task.delay()
    assert bench.queue_length == 1


def test_what_a_function_raises_reaches_the_caller(bench: Bench) -> None:
    task = declare(bench, lock_on_duplicate=lambda task, error: 1 / 0)
    task.delay()
    with pytest.raises(ZeroDivisionError):
        task.delay()


@pytest.mark.parametrize("foreign", ["canonical client", "0" * 32, f"{'0' * 32} 17 queued x"])
def test_a_lock_that_no_task_holds_drops_nothing(bench: Bench, foreign: str) -> None:
    owned_by(bench, "other")
    bench.node.state.keys[KEY].owner = foreign
    assert Envelope.read(bench.send(declare(bench))).reservation is None


def test_ignore_result_of_a_call_makes_its_duplicates_result_unreadable(bench: Bench) -> None:
    task = declare(bench)
    task.delay()
    assert task.apply_async(ignore_result=True).readable is False
    assert task.delay().readable is True


def test_a_task_is_no_duplicate_of_one_that_has_only_some_of_its_keys(bench: Bench) -> None:
    owned_by(bench, "other")
    message = bench.send(declare(bench, lock_key=["k", "j"]))
    assert Envelope.read(message).reservation is None


def test_a_task_is_a_duplicate_of_one_that_has_all_of_its_keys(bench: Bench) -> None:
    client_of(bench.elsewhere).acquire_for_task(
        ("j", "k"), ttl=30, label=label_for(Role.RUNNING, "other", "w@host", task="job")
    )
    assert declare(bench, lock_key=["k", "j"]).delay().id == "other"
