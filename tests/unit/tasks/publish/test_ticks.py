"""Where a task takes its lock when it is sent, the copies of a tick do not stand in for others."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.tasks.message.duplicate_result import DuplicateResult
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.message.tick import Tick
from celery_redlock.tasks.rules.facts import Role
from celery_redlock.tasks.ticks.tick_context import connect_publishes, sending_tick
from tests.support.events import counters
from tests.support.tasks import Bench
from tests.support.ticks import mark, send_tick, tick
from tests.support.unique import MODES, QUEUE, declare, role, value
from tests.support.waiting import wait_until
from tests.unit.tasks.jobs import before_next, raising


@pytest.fixture(autouse=True)
def connected() -> None:
    """Let publishes find the tick that they carry."""
    connect_publishes()


def publish(task: Any, what: Tick, **options: Any) -> Any:
    """Send a task as a beat does that names its ticks."""
    with sending_tick(task.name, what):
        return task.apply_async(**options)


def queued(bench: Bench, mode: str) -> Role | None:
    """Return who has the place that the next publish needs."""
    return role(bench, QUEUE) if mode == "until_and_while_executing" else role(bench)


# In the window of `until_expired` all ticks are dropped, as they should be.
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "until_expired"])
@pytest.mark.parametrize("options", [{}, {"task_id": "of the tick"}], ids=["plain", "led"])
def test_a_tick_that_was_worked_on_is_not_sent_again(
    bench: Bench, mode: str, options: dict[str, Any]
) -> None:
    task = declare(bench, lock_mode=mode)
    first = publish(task, tick())
    bench.run(bench.receive())
    before = counters()["task_duplicate"]
    again = publish(task, tick(), **options)
    assert (type(again), again.id, bench.queue_length) == (DuplicateResult, first.id, 0)
    assert counters()["task_duplicate"] - before == 1
    assert queued(bench, mode) is None


def test_nor_is_one_whose_message_is_dealt_with_while_the_copy_takes_its_lock(
    bench: Bench, client: Any
) -> None:
    task = declare(bench)
    publish(task, tick())
    first = bench.receive()
    before_next(client, "reserve", lambda: bench.run(first))
    assert isinstance(publish(task, tick()), DuplicateResult)
    assert (bench.queue_length, value(bench)) == (0, None)


def test_the_next_tick_is_sent(bench: Bench) -> None:
    task = declare(bench)
    publish(task, tick())
    bench.run(bench.receive())
    publish(task, tick(1))
    assert bench.run(bench.receive()).value == "ran"


def test_the_copy_of_a_tick_that_runs_is_sent_without_a_lock(bench: Bench) -> None:
    def body(self: Any) -> None:
        publish(task, tick())

    task = declare(bench, body, lock_mode="until_executing")
    publish(task, tick())
    bench.run(bench.receive())
    copy = bench.receive()
    assert (Envelope.read(copy).reservation, Envelope.read(copy).tick) == (None, tick())
    assert value(bench) is None


def test_a_leaders_tick_is_dropped_in_favour_of_a_message_that_waits(bench: Bench) -> None:
    task = declare(bench)
    waiting = publish(task, tick())
    with sending_tick(task.name, tick(1), owns_id=True):
        dropped = task.apply_async(task_id="of the tick")
    assert (type(dropped), dropped.id, bench.queue_length) == (DuplicateResult, waiting.id, 1)


def test_a_tick_whose_entry_names_the_task_id_is_sent_all_the_same(bench: Bench) -> None:
    task = declare(bench)
    publish(task, tick())
    publish(task, tick(1), task_id="somebody waits for it")
    assert bench.queue_length == 2


def test_a_tick_is_sent_where_nobody_can_say_who_works_on_it(bench: Bench) -> None:
    task = declare(bench)
    bench.node.kill()
    publish(task, tick())
    assert bench.queue_length == 1


def test_a_message_without_a_tick_is_not_looked_up(bench: Bench, client: Any) -> None:
    client.inspect = raising(ZeroDivisionError())
    declare(bench).delay()
    assert bench.queue_length == 1


def test_a_copy_that_is_ignored_frees_the_lock_that_it_brought(bench: Bench, mode: str) -> None:
    task = declare(bench, lock_mode="while_executing")
    bench.run(send_tick(bench, task, tick()))
    unique = declare(bench, lock_mode=mode, name="unique")
    unique.name = "job"
    bench.app.tasks["job"] = unique
    copy = send_tick(bench, unique, tick())
    assert queued(bench, mode) is Role.QUEUED
    assert bench.run(copy).state == "IGNORED"
    wait_until(lambda: queued(bench, mode) is None, message="the lock stayed")
    assert role(bench, mark(bench, tick())) is Role.FINISHED


def test_a_debounced_tick_gives_way_to_the_next_one(bench: Bench, revoked: list[str]) -> None:
    task = bench.task(lambda: "ran", lock_key="k", lock_debounce=5)
    publish(task, tick())
    publish(task, tick(60))
    older, newer = bench.receive(), bench.receive()
    assert [bench.run(older).state, bench.run(newer).state] == ["IGNORED", "SUCCESS"]
