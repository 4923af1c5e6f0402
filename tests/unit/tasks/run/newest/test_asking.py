"""A run that asks the one before it to stop: which asks, gives way, waits, and has its turn."""

from __future__ import annotations

import time
from typing import Any

import pytest

from celery_redlock.core import client_of
from celery_redlock.errors import QuorumUnavailable
from celery_redlock.signals import task_replaced
from celery_redlock.tasks.rules.facts import Role
from tests.support.events import counters, listening
from tests.support.tasks import Bench
from tests.support.ticks import send_tick, send_unnamed, tick, tick_now
from tests.support.unique import free, left, owned_by, role, value
from tests.support.waiting import wait_until
from tests.unit.tasks.jobs import raising
from tests.unit.tasks.run.newest.company import COMPANION, job, next_one, occupy, occupy_for, told


def test_a_run_that_may_be_replaced_takes_a_companion_with_its_key(bench: Bench) -> None:
    task = job(bench, "stop", lambda self: [value(bench), value(bench, COMPANION)])
    key, companion = bench.call(task).value
    assert key == companion
    assert (value(bench), value(bench, COMPANION)) == (None, None)


@pytest.mark.parametrize("policy", ["skip", "requeue"])
def test_a_run_that_may_not_be_replaced_takes_none(bench: Bench, policy: str) -> None:
    assert bench.call(job(bench, policy, lambda self: value(bench, COMPANION))).value is None


def test_a_newer_run_asks_the_older_and_leaves_its_lock_alone(bench: Bench) -> None:
    other = occupy_for(bench, -60)
    before = counters()
    request = send_tick(bench, job(bench, "stop"), tick())
    assert bench.run(request).state == "RETRY"
    assert (value(bench), next_one(bench)) == (other.owner, request["id"])
    assert told(before) == {"task_replaced": 1, "task_requeued": 1}


def test_an_older_run_is_told_of_once_however_often_it_is_asked(bench: Bench) -> None:
    occupy_for(bench, -60)
    request = send_tick(bench, job(bench, "stop"), tick())
    with listening(task_replaced) as heard:
        for _ in range(3):
            bench.run(request)
    assert [(news["task_id"], news["by"]) for news in heard] == [("other", request["id"])]


def test_an_older_run_gives_way_to_a_newer_and_does_not_run_later(bench: Bench) -> None:
    other = occupy_for(bench, 60)
    task = job(bench, "stop")
    first, copy = (send_tick(bench, task, tick()) for _ in range(2))
    assert bench.run(first).state == "IGNORED"
    assert bench.app.AsyncResult(first["id"]).state == "REVOKED"
    assert value(bench, COMPANION) == other.owner
    other.release()
    assert bench.run(copy).state == "IGNORED"


def test_a_tick_replaces_the_run_of_a_program_that_began_before_it(bench: Bench) -> None:
    occupy(bench)
    request = send_tick(bench, job(bench, "stop"), tick_now(60))
    assert bench.run(request).state == "RETRY"
    assert next_one(bench) == request["id"]


def test_a_tick_waits_for_the_run_of_a_program_that_began_after_it(bench: Bench) -> None:
    other = occupy(bench)
    request = send_tick(bench, job(bench, "stop"), tick_now(-60))
    assert bench.run(request).state == "RETRY"
    assert value(bench, COMPANION) == other.owner


def test_a_call_that_names_no_time_asks_what_it_finds(bench: Bench) -> None:
    occupy(bench)
    request = send_unnamed(bench, job(bench, "stop"))
    assert bench.run(request).state == "RETRY"
    assert next_one(bench) == request["id"]


def test_it_replaces_nothing_that_began_while_it_waited(bench: Bench) -> None:
    other = occupy(bench)
    bench.run(send_unnamed(bench, job(bench, "stop")))
    other.release()
    free(bench, COMPANION)
    newer = occupy(bench)
    assert bench.run(bench.receive()).state == "RETRY"
    assert value(bench, COMPANION) == newer.owner


def test_a_run_waits_for_a_lock_that_no_task_of_ours_has(bench: Bench) -> None:
    bench.elsewhere.acquire("k", ttl=60)
    assert bench.run(send_tick(bench, job(bench, "stop"), tick())).state == "RETRY"


def test_a_run_that_cannot_ask_now_waits_and_asks_again(bench: Bench, client: Any) -> None:
    occupy_for(bench, -60)
    request = send_tick(bench, job(bench, "stop"), tick())
    reserve, client.reserve = client.reserve, raising(QuorumUnavailable("no"))
    assert bench.run(request).state == "RETRY"
    assert next_one(bench) is None
    client.reserve = reserve
    assert bench.run(bench.receive()).state == "RETRY"
    assert next_one(bench) == request["id"]


def test_of_several_holders_each_is_asked(bench: Bench) -> None:
    task = job(bench, "stop", lock_key=["k", "l"])
    one = occupy_for(bench, -60)
    bench.run(send_tick(bench, task, tick()))
    one.release()
    beside = "redlock-meta:running:redlock:l"
    facts = {"due_us": tick(-60).due_us}
    another = owned_by(bench, "another", Role.RUNNING, "redlock:l", beside, **facts)
    assert bench.run(bench.receive()).state == "RETRY"
    assert value(bench, beside) is None
    another.release()
    assert bench.run(bench.receive()).value == "ran"


@pytest.mark.usefixtures("longest_delay")
def test_a_run_that_asked_comes_back_when_the_other_can_have_noticed(bench: Bench) -> None:
    occupy_for(bench, -60)
    request = send_tick(bench, job(bench, "stop", lock_ttl=12), tick())
    request["redlock"].update(first_seen=time.time(), requeues=8, retries=0)
    outcome = bench.run(request)
    assert outcome.value.when == 4


def test_the_owner_of_the_data_frees_the_companion_too(bench: Bench) -> None:
    occupy(bench)
    task = job(bench, "stop")
    assert task.release_lock()
    assert (value(bench), value(bench, COMPANION)) == (None, None)


def test_with_several_keys_what_is_asked_is_who_has_them(bench: Bench) -> None:
    task = job(bench, "stop", lock_key=["k", "l"])
    occupy_for(bench, -60)
    free_one = "redlock-meta:running:redlock:l"
    client_of(bench.elsewhere).acquire_for_task(["other"], [free_one], ttl=60)
    request = send_tick(bench, task, tick())
    bench.run(request)
    assert next_one(bench) == request["id"]
    assert role(bench, free_one) is not Role.QUEUED


def test_a_newer_run_goes_before_one_that_waits_and_takes_a_free_lock_at_once(bench: Bench) -> None:
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
