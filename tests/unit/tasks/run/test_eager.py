"""Unique tasks under `apply()`, and tasks inside tasks."""

from __future__ import annotations

import time
from typing import Any

import pytest
from celery import chain

from celery_redlock import is_skipped
from celery_redlock.errors import LockContended, LockNotAcquired
from celery_redlock.tasks.rules.facts import Role
from tests.support.tasks import Bench
from tests.support.unique import QUEUE, declare, role, value
from tests.unit.tasks.jobs import counting, raising, retry_once


def test_apply_locks_as_a_worker_does(bench: Bench, mode: str) -> None:
    task = declare(bench, lambda self: str(role(bench)), lock_mode=mode)
    in_body = "None" if mode == "until_executing" else "running"
    assert task.apply().get() == in_body
    assert role(bench) == (Role.FINISHED if mode == "until_expired" else None)
    assert value(bench, QUEUE) is None


def test_apply_may_name_a_task_id_twice(bench: Bench) -> None:
    task = declare(bench, lambda self: "ran")
    assert [task.apply(task_id="mine").get() for _ in range(2)] == ["ran", "ran"]


def test_a_retry_under_apply_takes_the_lock_again(bench: Bench, mode: str) -> None:
    task, runs = counting(declare, bench, retry_once, lock_mode=mode)
    assert task.apply().get() == "ran"
    assert len(runs) == 2


def test_a_failure_under_apply_frees_the_lock(bench: Bench) -> None:
    with pytest.raises(ValueError, match="no"):
        declare(bench, raising(ValueError("no"))).apply(throw=True)
    assert value(bench) is None


def test_tasks_that_are_always_eager_run_one_after_the_other(bench: Bench, mode: str) -> None:
    bench.app.conf.task_always_eager = True
    task = declare(bench, lambda self: "ran", lock_mode=mode)
    result = chain(task.si(), task.si()).apply_async()
    value = result.get()
    assert is_skipped(value) if mode == "until_expired" else value == "ran"


def test_a_task_applied_in_its_own_body_is_a_duplicate(bench: Bench) -> None:
    def body(self: Any, depth: int = 0) -> list[Any]:
        return ["outer", self.apply((1,)).get()] if depth == 0 else ["inner"]

    assert declare(bench, body, lock_skip_result="skipped").apply().get() == ["outer", "skipped"]


def test_a_task_is_not_waited_for_by_what_it_runs_itself(bench: Bench) -> None:
    def body(self: Any, depth: int = 0) -> str:
        if depth:
            return "inner"
        with pytest.raises(LockContended):
            self.apply((1,)).get()
        return "outer"

    task = bench.task(body, bind=True, lock_key="k", lock_wait=0, lock_give_up_after=60)
    began = time.monotonic()
    assert bench.call(task).value == "outer"
    assert time.monotonic() - began < 30


@pytest.mark.usefixtures("quick_pauses")
def test_an_eager_call_that_waits_for_a_paused_key_asks_its_policy_after_that(bench: Bench) -> None:
    task = declare(bench, lock_mode="while_executing", lock_on_conflict="skip")
    bench.elsewhere.acquire("k", ttl=60)
    bench.elsewhere.pause("k", 5)
    assert is_skipped(task.apply().get())


@pytest.mark.usefixtures("quick_pauses")
def test_an_eager_call_that_waits_for_its_lock_is_logged_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    task = declare(bench, lambda self: "ran", lock_key="k", lock_wait=0, lock_give_up_after=20)
    bench.elsewhere.acquire("k", label="another")
    with pytest.raises(LockNotAcquired):
        task.apply(throw=True)
    (warning,) = [text for text in caplog.messages if "blocks its caller" in text]
    assert "for up to lock_give_up_after = 20 s: lock 'k' is held by 'another'" in warning


@pytest.mark.usefixtures("quick_pauses")
def test_an_eager_call_without_nodes_is_shown_how_a_test_needs_none(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    task = declare(bench, lambda self: "ran", lock_key="k", lock_wait=0, lock_give_up_after=2)
    bench.node.pause()
    with pytest.raises(LockNotAcquired):
        task.apply(throw=True)
    assert "redlock_nodes = ['memory://'] needs no server." in caplog.text
