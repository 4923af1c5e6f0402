"""What is sent while its lock is taken by a task that does the same, and what its sender gets."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock import is_duplicate
from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.message.envelope import Envelope
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
    owned_by(bench, "other", Role.RUNNING, KEY, "redlock:j")
    assert declare(bench, lock_key=["k", "j"]).delay().id == "other"


TIES: list[dict[str, Any]] = [
    {"task_id": "mine"},
    {"link": []},
    {"link_error": []},
    {"chord": {"task": "x"}},
    {"chain": [{"task": "x"}]},
    {"group_id": "g"},
]


@pytest.mark.parametrize("policy", ["existing", "raise"])
@pytest.mark.parametrize("tie", TIES, ids=lambda tie: next(iter(tie)))
def test_a_duplicate_that_somebody_counts_on_is_sent_without_a_lock(
    bench: Bench, tie: dict[str, Any], policy: str
) -> None:
    task = declare(bench, lock_on_duplicate=policy)
    tie = {name: value or [task.si()] for name, value in tie.items()}
    owned_by(bench, "other")
    message = bench.send(task, **tie)
    assert Envelope.read(message).reservation is None
    assert Envelope.read(message).nonce


def test_a_policy_is_not_asked_at_publish_about_a_duplicate_that_has_to_be_sent(
    bench: Bench,
) -> None:
    task = declare(bench, lock_on_duplicate=lambda task, error: 1 / 0)
    task.delay()
    task.apply_async(task_id="mine")
    assert bench.queue_length == 2


def test_a_plain_signature_is_dropped_as_a_duplicate(bench: Bench) -> None:
    task = declare(bench)
    first = task.s().delay()
    assert task.si().apply_async().id == first.id
    assert bench.queue_length == 1
