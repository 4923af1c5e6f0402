"""Options of the lock belong to the task: a call that has one is refused, and so are no headers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import chain

from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.adoption import lock_matching_tasks
from tests.support.tasks import Bench
from tests.unit.tasks.jobs import job

OPTIONS = {"lock_key": "other", "lock_ttl": 5, "lock_wait": 1, "lock_on_conflict": "drop"}
CALLS = {
    "apply_async": lambda task, options: task.apply_async(("a",), **options),
    "apply": lambda task, options: task.apply(("a",), **options),
    "signature": lambda task, options: task.s("a").set(**options).apply_async(),
    "delayed signature": lambda task, options: task.s("a").set(**options).delay(),
    "chain": lambda task, options: chain(task.si("a").set(**options), task.si("a")).apply_async(),
}


def run(self: Any, key: str) -> str:
    return key


@pytest.fixture
def patterned() -> Iterator[Bench]:
    bench = Bench(redlock_tasks={"job": {"lock_key": "{key}"}})
    yield bench
    bench.close()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("option", OPTIONS)
def test_a_call_with_an_option_of_the_lock_is_refused_by_name(
    bench: Bench, call: str, option: str
) -> None:
    task = job(bench, run, lock_key="{key}")

    with pytest.raises(ConfigurationError, match=rf"takes no {option}: .* belong to the task"):
        CALLS[call](task, {option: OPTIONS[option]})
    assert bench.queue_length == 0


def test_a_call_of_a_task_that_a_pattern_locks_is_refused_too(patterned: Bench) -> None:
    plain = patterned.app.task(run, bind=True, name="job", shared=False)
    lock_matching_tasks(patterned.app)

    with pytest.raises(ConfigurationError, match="takes no lock_key"):
        plain.apply_async(("a",), lock_key="other")


@pytest.mark.parametrize("headers", ["x-trace=1", [7], 7])
@pytest.mark.parametrize("call", ["apply", "apply_async"])
def test_headers_that_are_no_mapping_are_refused_by_name(
    bench: Bench, call: str, headers: Any
) -> None:
    task = job(bench, run, lock_key="{key}")

    with pytest.raises(
        ConfigurationError, match=rf"{call}\(headers=.*mapping.*{type(headers).__name__}"
    ):
        getattr(task, call)(("a",), headers=headers)


@pytest.mark.parametrize("headers", [{"x-trace": "1"}, [("x-trace", "1")]])
def test_headers_that_are_a_mapping_travel_with_the_message(bench: Bench, headers: Any) -> None:
    task = job(bench, run, lock_key="{key}")

    assert bench.send(task, "a", headers=headers)["x-trace"] == "1"
    assert task.apply(("a",), headers=headers).get() == "a"
