"""The messages that several beats send for one tick are copies of one message."""

from __future__ import annotations

import time
from typing import Any

import pytest
from celery import Task, signals
from celery.exceptions import Ignore, Reject

from celery_redlock import RedlockTask
from celery_redlock.tasks.adoption import protect_tasks
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.message.tick import Tick
from celery_redlock.tasks.rules.facts import Role
from tests.support.events import counters
from tests.support.tasks import Bench
from tests.support.ticks import ENTRY, mark, send_tick, tick
from tests.support.unique import KEY, free, holder, left, role
from tests.unit.tasks.jobs import ALL_MODES, before_next, counting, job, raising


@pytest.fixture(autouse=True)
def unmarked() -> None:
    """Be as a worker is in which no message was marked before."""
    signals.task_prerun.disconnect(dispatch_uid="celery_redlock.task_prerun")


def test_a_body_that_no_schedule_started_has_no_tick(bench: Bench) -> None:
    assert bench.call(job(bench, lambda self: self.request.tick)).value is None


def test_a_header_that_is_called_tick_is_not_believed(bench: Bench) -> None:
    task = job(bench, lambda self: self.request.tick)
    assert bench.call(task, headers={"tick": "mine"}).value is None


def test_under_apply_there_is_no_tick(bench: Bench) -> None:
    task = job(bench, lambda self: (self.request.tick, sorted(bench.node.state.keys)))
    headers = {"redlock": Envelope(nonce="n", tick=tick()).write()}
    assert task.apply(headers=headers).get() == (None, [KEY])


@pytest.mark.parametrize("mode", ALL_MODES)
def test_of_the_messages_of_one_tick_one_runs(bench: Bench, mode: str) -> None:
    task, runs = counting(job, bench, lock_mode=mode)
    copies = [send_tick(bench, task, tick(), task_id=name) for name in ("a", "b", "c")]
    before = counters()["redelivery_ignored"]
    states = [bench.run(copy).state for copy in copies]
    assert (states, runs) == (["SUCCESS", "IGNORED", "IGNORED"], ["a"])
    assert counters()["redelivery_ignored"] - before == 2


@pytest.mark.parametrize(
    ("one", "other", "runs"),
    [
        (tick(), tick(1), 2),
        (tick(), tick(0.000001), 2),
        (tick(), tick(entry="daily"), 2),
        (tick(schedule="beat:app", token=7), tick(schedule="beat:app"), 1),
    ],
    ids=["the next tick", "a microsecond later", "another entry", "the same of a leader"],
)
def test_messages_of_different_ticks_run(bench: Bench, one: Tick, other: Tick, runs: int) -> None:
    task, ran = counting(job, bench)
    for what in (one, other):
        bench.run(send_tick(bench, task, what))
    assert len(ran) == runs


def test_the_copy_of_a_tick_that_runs_is_put_back_and_ignored_once_that_has_finished(
    bench: Bench,
) -> None:
    states: list[str] = []

    def body(self: Any) -> str:
        states.append(bench.run(send_tick(bench, task, tick())).state)
        return "ran"

    task = job(bench, body, lock_on_conflict="skip")
    first = send_tick(bench, task, tick())
    assert bench.run(first).value == "ran"
    copy = bench.receive()
    assert (states, Envelope.read(copy).tick) == (["IGNORED"], tick())
    assert bench.run(copy).state == "IGNORED"
    assert bench.queue_length == 0


def test_what_becomes_of_a_copy_is_said_with_its_tick(bench: Bench, caplog: Any) -> None:
    task = job(bench)
    copies = [send_tick(bench, task, tick()) for _ in range(2)]
    caplog.set_level("INFO")
    for copy in copies:
        bench.run(copy)
    due = tick().due_at.isoformat()
    assert f"came once more for entry '{ENTRY}', due at {due}, after it had" in caplog.text


ENDINGS = {
    "ignored": (Ignore(), {}),
    "rejected": (Reject("no", requeue=False), {"acks_late": True}),
    "failed": (ValueError(), {"acks_late": True, "acks_on_failure_or_timeout": False}),
}


def ending(bench: Bench, name: str) -> tuple[Any, list[str]]:
    """Declare a task whose body ends in this way, without an outcome."""
    error, options = ENDINGS[name]
    return counting(job, bench, raising(error), **options)


@pytest.mark.parametrize("name", ENDINGS)
def test_the_copy_of_a_tick_whose_body_wanted_no_outcome_is_ignored(
    bench: Bench, name: str
) -> None:
    task, runs = ending(bench, name)
    copies = [send_tick(bench, task, tick()) for _ in range(2)]
    bench.run(copies[0])
    assert (bench.run(copies[1]).state, len(runs)) == ("IGNORED", 1)
    assert role(bench, mark(bench, tick())) is Role.ABANDONED


@pytest.mark.parametrize("name", ENDINGS)
def test_that_very_message_runs_if_it_is_sent_again(bench: Bench, name: str) -> None:
    task, runs = ending(bench, name)
    message = send_tick(bench, task, tick())
    bench.run(message)
    bench.run(message)
    assert runs == [message["id"]] * 2


@pytest.mark.parametrize(
    ("until", "least", "most"),
    [(None, 450, 500), (-1000, 450, 500), (1000, 1450, 1500.001)],
    ids=["its dedupe window", "its dedupe window if its next is due", "that from when that is due"],
)
def test_a_tick_is_remembered_for(
    bench: Bench, until: float | None, least: float, most: float
) -> None:
    next_due = {} if until is None else {"until": time.time() + until}
    bench.run(send_tick(bench, job(bench, lock_dedupe_window=500), tick(**next_due)))
    assert least < left(bench, mark(bench, tick())) <= most


def test_a_copy_that_comes_after_the_dedupe_window_runs_again(bench: Bench) -> None:
    task, runs = counting(job, bench)
    bench.run(send_tick(bench, task, tick()))
    free(bench, mark(bench, tick()))
    bench.run(send_tick(bench, task, tick()))
    assert len(runs) == 2


def test_a_tick_that_waits_for_its_lock_stays_the_same_tick(bench: Bench) -> None:
    task, runs = counting(job, bench)
    other = bench.elsewhere.acquire("k", ttl=60)
    assert bench.run(send_tick(bench, task, tick())).state == "RETRY"
    again = bench.receive()
    other.release()
    assert [bench.run(request).state for request in (again, again)] == ["SUCCESS", "IGNORED"]
    assert len(runs) == 1


def test_the_owner_value_of_a_ticks_run_tells_when_it_was_due(bench: Bench) -> None:
    owners: list[Any] = []
    task = job(bench, lambda self: owners.append(holder(bench)))
    bench.run(send_tick(bench, task, tick()))
    assert [(owner.role, owner.due_us) for owner in owners] == [(Role.RUNNING, tick().due_us)]


def test_the_owner_value_of_another_run_tells_no_due_time(bench: Bench) -> None:
    owners: list[Any] = []
    bench.call(job(bench, lambda self: owners.append(holder(bench))))
    assert [owner.due_us for owner in owners] == [None]


def test_what_a_ticks_run_sends_waits_for_it_whatever_the_policy(bench: Bench) -> None:
    task, runs = counting(job, bench, lock_on_conflict="skip")
    states: list[str] = []
    first = send_tick(bench, task, tick())
    child = bench.send(task, parent_id=first["id"])
    before_next(task.backend, "mark_as_done", lambda: states.append(bench.run(child).state))
    bench.run(first)
    assert (states, len(runs)) == (["RETRY"], 1)


def test_a_tick_of_a_plain_task_is_recognised_where_all_tasks_are_protected() -> None:
    bench = Bench(redlock_dedupe=True)
    try:
        task = bench.task(lambda self: self.request.tick.entry, base=Task, bind=True)
        bench.app.finalize()
        protect_tasks(bench.app)
        copies = [send_tick(bench, task, tick()) for _ in range(2)]
        outcomes = [bench.run(copy) for copy in copies]
        assert [outcome.state for outcome in outcomes] == ["SUCCESS", "IGNORED"]
        assert outcomes[0].value == ENTRY
    finally:
        bench.close()


def test_a_plain_task_has_no_mark(bench: Bench) -> None:
    task = bench.task(lambda self: sorted(bench.node.state.keys), base=RedlockTask, bind=True)
    assert bench.run(send_tick(bench, task, tick())).value == []
