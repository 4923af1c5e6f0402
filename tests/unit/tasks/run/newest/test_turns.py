"""A run that has asked has the next turn, and gives it up when it ends."""

from __future__ import annotations

import pytest

from tests.support.events import counters
from tests.support.tasks import Bench
from tests.support.ticks import send_tick, tick, tick_now
from tests.support.unique import left, value
from tests.support.waiting import wait_until
from tests.unit.tasks.run.newest.company import COMPANION, job, next_one, occupy_for, told


def test_a_newer_run_goes_before_one_that_waits_and_takes_a_free_lock_at_once(
    bench: Bench,
) -> None:
    other = occupy_for(bench, -60)
    task = job(bench, "stop")
    bench.run(send_tick(bench, task, tick()))
    bench.receive()
    other.release()
    before = counters()
    assert bench.run(send_tick(bench, task, tick(60))).value == "ran"
    assert told(before) == {"task_replaced": 1}


def test_the_turn_of_a_run_that_never_comes_back_ends(bench: Bench) -> None:
    other = occupy_for(bench, -60)
    bench.run(send_tick(bench, job(bench, "stop", lock_ttl=7), tick()))
    other.release()
    assert 0 < left(bench, COMPANION) <= 2 * 7


def test_a_run_that_comes_back_keeps_its_turn(bench: Bench) -> None:
    occupy_for(bench, -60)
    task = job(bench, "stop", lock_ttl=7)
    bench.run(send_tick(bench, task, tick()))
    bench.node.state.keys[COMPANION].expires_at -= 13_000
    again = bench.receive()
    assert bench.run(again).state == "RETRY"
    assert (next_one(bench), left(bench, COMPANION) > 10) == (again["id"], True)


@pytest.mark.parametrize("ended", ["skipped", "given up"])
def test_a_run_that_ends_without_the_lock_gives_its_turn_up(bench: Bench, ended: str) -> None:
    occupy_for(bench, -60)
    task = job(bench, "stop", lock_give_up_after=50, lock_starting_deadline=100)
    bench.run(send_tick(bench, task, tick_now()))
    again = bench.receive()
    if ended == "skipped":
        again["redlock"]["tick"]["due"] -= 1000
    else:
        again["redlock"]["first_seen"] -= 100
    assert bench.run(again).state == ("SUCCESS" if ended == "skipped" else "FAILURE")
    wait_until(lambda: value(bench, COMPANION) is None, message="the turn stayed")


def test_who_waits_for_the_lock_of_an_older_run_is_told(bench: Bench) -> None:
    other = occupy_for(bench, -60)
    task = job(bench, "stop")
    request = send_tick(bench, task, tick())
    bench.run(request)
    assert task.lock_holder().task_id == "other"
    other.release()
    waits = task.lock_holder()
    assert (waits.task_id, waits.state) == (request["id"], "queued")
