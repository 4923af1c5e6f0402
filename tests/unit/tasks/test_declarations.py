"""Mistakes in declarations: where they are raised, and that all of them are."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from celery_redlock.errors import ConfigurationError, LockKeyError
from celery_redlock.tasks.config.mistakes import Misconfigured
from celery_redlock.tasks.declarations import find_mistakes
from tests.support.tasks import Bench


def test_a_mistake_keeps_no_other_task_of_the_app_from_working() -> None:
    bench = Bench()
    bench.task(lambda: None, name="wrong", lock_ttl=-1)
    right = bench.task(lambda: bench.is_held("k"), name="right", lock_key="k")
    with pytest.raises(ConfigurationError, match="task 'wrong'"):
        bench.app.finalize()
    assert bench.call(right).value is True


def test_a_task_with_a_mistake_runs_no_body_without_its_lock() -> None:
    ran: list[int] = []
    bench = Bench()
    wrong = bench.task(lambda: ran.append(1), lock_ttl=-1)
    with pytest.raises(ConfigurationError):
        bench.app.finalize()
    with pytest.raises(ConfigurationError, match="lock_ttl=-1"):
        wrong.apply(throw=True)
    with pytest.raises(ConfigurationError, match="lock_ttl=-1"):
        wrong.delay()
    assert ran == []


def test_a_task_of_a_finalized_app_is_refused_where_it_is_declared() -> None:
    bench = Bench()
    bench.app.finalize()
    with pytest.raises(LockKeyError, match="acount"):
        bench.task(lambda account: None, lock_key="{acount}")


def test_an_error_with_several_mistakes_can_be_sent_to_another_process() -> None:
    error = Misconfigured("one", "two?", "two?")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) == "2 settings or options are invalid:\n  - one.\n  - two?"
    assert type(error)(*error.args).mistakes == error.mistakes


def test_nodes_that_are_one_server_are_a_mistake() -> None:
    bench = Bench(redlock_nodes=["redis://h:1/0", "redis://h:1/1", "redis://h:2/0"])
    bench.task(lambda: None, lock_key="k")
    mistakes, _ = find_mistakes(bench.app, with_nodes=False)
    assert "are one server" in str(mistakes.all_in_one())


async def choose(task: Any, error: Any) -> str:
    return "skip"


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"lock_on_conflict": choose}, "choose is a coroutine function, which is not awaited"),
        ({"lock_mode": "until_executed", "lock_on_duplicate": choose}, "choose is a coroutine"),
        ({"lock_key": lambda other: "k"}, "names 'other', which the task does not have"),
        ({"lock_key": choose}, "choose is a coroutine function"),
    ],
)
def test_what_would_fail_at_the_first_conflict_is_refused_at_declaration(
    options: dict[str, Any], names: str
) -> None:
    bench = Bench()
    bench.task(lambda account: None, **{"lock_key": "k", **options})
    with pytest.raises(ConfigurationError, match=f"task 'job': .*{names}"):
        bench.app.finalize()


def test_a_skip_result_that_the_apps_serializer_takes_is_accepted() -> None:
    bench = Bench(result_serializer="pickle")
    bench.task(lambda: None, lock_key="k", lock_on_conflict="skip", lock_skip_result=object())
    bench.app.finalize()


def test_a_skip_result_of_the_app_that_cannot_be_stored_is_a_mistake() -> None:
    bench = Bench(redlock_skip_result=object())
    bench.task(lambda: None, lock_key="k")
    with pytest.raises(ConfigurationError, match="setting redlock_skip_result=<object"):
        bench.app.finalize()


def test_a_key_function_may_take_all_arguments_by_position() -> None:
    bench = Bench()
    task = bench.task(
        lambda a, b=2: bench.is_held("1-2"), lock_key=lambda *args: "{}-{}".format(*args)
    )
    bench.app.finalize()
    assert bench.call(task, 1).value is True
