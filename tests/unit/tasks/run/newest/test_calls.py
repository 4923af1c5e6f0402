"""Calls of one task that a program sends, where the newest wins: by when they were sent."""

from __future__ import annotations

import time
from threading import Thread
from typing import Any

import pytest

from celery_redlock import Limit, LockContended, is_duplicate
from celery_redlock.signals import task_superseded
from celery_redlock.tasks.rules.facts import Role
from tests.support.events import counters, listening
from tests.support.tasks import Bench
from tests.support.ticks import send_tick, tick_now
from tests.support.unique import free, owned_by, value
from tests.support.waiting import TIMEOUT, wait_until
from tests.unit.tasks import jobs
from tests.unit.tasks.jobs import before_next, break_broker, retry_once
from tests.unit.tasks.run.newest.company import COMPANION, job, next_one, occupy, told


def send_tick_now(bench: Bench, task: Any) -> dict[str, Any]:
    """Send a task as a beat does for a tick that is due now."""
    return send_tick(bench, task, tick_now())


def sent_us(seconds: float = 0.0) -> int:
    """Return a time of sending, so many seconds from now."""
    return round((time.time() + seconds) * 1_000_000)


def stored(bench: Bench, request: dict[str, Any]) -> str:
    """Return the state of a call as those read it that wait for its result."""
    return str(bench.app.AsyncResult(request["id"]).state)


def test_a_newer_call_asks_the_older_to_stop_however_long_lock_wait_is(bench: Bench) -> None:
    other = occupy(bench, sent_us=sent_us(-1))
    request = bench.send(job(bench, lock_wait=1800))
    assert bench.run(request).state == "RETRY"
    assert (value(bench), next_one(bench)) == (other.owner, request["id"])


def test_an_older_call_is_older_although_it_took_the_key_later(bench: Bench) -> None:
    request = bench.send(job(bench))
    occupy(bench, sent_us=sent_us(-1))
    assert bench.run(request).state == "RETRY"
    assert next_one(bench) == request["id"]


def test_a_call_that_finds_a_newer_one_at_work_ends_as_replaced_however_long_lock_wait_is(
    bench: Bench,
) -> None:
    request = bench.send(job(bench, lock_wait=1800))
    other = occupy(bench, sent_us=sent_us())
    assert bench.run(request).state == "IGNORED"
    assert (stored(bench, request), value(bench, COMPANION)) == ("REVOKED", other.owner)


def test_a_call_that_is_replaced_says_by_which(bench: Bench) -> None:
    request = bench.send(job(bench))
    occupy(bench, sent_us=sent_us())
    with listening(task_superseded) as heard:
        bench.run(request)
    assert [(news["task_id"], news["by"]) for news in heard] == [(request["id"], "other")]


@pytest.fixture
def waiting(bench: Bench) -> tuple[dict[str, Any], dict[str, Any]]:
    """An older and a newer call, while one that is older than both has the lock."""
    occupy(bench, sent_us=sent_us(-1))
    task = job(bench)
    return bench.send(task), bench.send(task)


def test_of_two_calls_that_wait_the_newer_becomes_the_next(bench: Bench, waiting: Any) -> None:
    for request in waiting:
        bench.run(request)
    assert next_one(bench) == waiting[1]["id"]


def test_an_older_call_that_comes_after_a_newer_one_that_waits_ends_at_once(
    bench: Bench, waiting: Any
) -> None:
    older, newer = waiting
    bench.run(newer)
    bench.receive()
    assert bench.run(older).state == "IGNORED"
    assert (bench.queue_length, next_one(bench)) == (0, newer["id"])


@pytest.mark.parametrize("asks_first", [0, 1], ids=["the older", "the newer"])
def test_of_two_calls_that_ask_at_once_the_newer_one_gets_the_place(
    bench: Bench, client: Any, waiting: Any, asks_first: int
) -> None:
    older, newer = waiting
    first, second = waiting[asks_first], waiting[1 - asks_first]
    # Between its refusal and its own request.
    before_next(client, "reserve", lambda: bench.run(first))
    assert bench.run(second).state == ("IGNORED" if second is older else "RETRY")
    assert next_one(bench) == newer["id"]


def test_a_call_whose_place_has_expired_asks_anew(bench: Bench) -> None:
    first = occupy(bench, sent_us=sent_us(-2))
    request = bench.send(job(bench))
    bench.run(request)
    again = bench.receive()
    first.release()
    free(bench, COMPANION)
    occupy(bench, sent_us=sent_us(-1))
    again["redlock"]["lock"]["expires_at"] = time.time() - 1
    assert bench.run(again).state == "RETRY"
    assert next_one(bench) == request["id"]


def test_a_retry_keeps_the_time_of_its_call(bench: Bench) -> None:
    first = bench.send(job(bench, body=retry_once))
    between = sent_us()
    bench.run(first)
    retry = bench.receive()
    occupy(bench, sent_us=between)
    assert bench.run(retry).state == "IGNORED"
    assert stored(bench, first) == "REVOKED"


def test_a_requeued_call_keeps_its_time(bench: Bench) -> None:
    request = bench.send(job(bench))
    occupy(bench, sent_us=sent_us(-1))
    bench.run(request)
    assert bench.receive()["redlock"]["sent"] == request["redlock"]["sent"]


def test_a_call_of_a_foreign_publisher_counts_as_sent_when_a_worker_looked_at_it(
    bench: Bench,
) -> None:
    occupy(bench, sent_us=sent_us(-1))
    job(bench)
    bench.app.finalize()
    bench.app.send_task("job")
    request = bench.receive()
    assert bench.run(request).state == "RETRY"
    assert next_one(bench) == request["id"]


def test_a_call_waits_for_one_that_was_sent_at_the_same_time(bench: Bench) -> None:
    request = bench.send(job(bench))
    other = occupy(bench, sent_us=round(request["redlock"]["sent"] * 1_000_000))
    assert bench.run(request).state == "RETRY"
    assert value(bench, COMPANION) == other.owner


def test_a_call_waits_for_the_body_that_sent_it(bench: Bench) -> None:
    def body(self: Any, again: bool = True) -> str | None:
        if again:
            task.apply_async([False])
            assert bench.run(bench.receive(), parent_id=self.request.id).state == "RETRY"
        return next_one(bench)

    task = job(bench, body=body)
    assert bench.call(task).value is None


def test_the_next_one_by_its_publishers_lock_asks_too(bench: Bench) -> None:
    other = occupy(bench, sent_us=sent_us(-1))
    task = job(bench, lock_mode="until_and_while_executing")
    assert bench.call(task).state == "RETRY"
    assert (value(bench), value(bench, COMPANION)) == (other.owner, None)
    other.release()
    assert bench.run(bench.receive()).value == "ran"


@pytest.mark.parametrize(("answer", "state"), [("stop", "RETRY"), ("skip", "SUCCESS")])
def test_a_function_may_choose_to_stop_the_older_call(
    bench: Bench, answer: str, state: str
) -> None:
    occupy(bench, sent_us=sent_us(-1))
    request = bench.send(job(bench, lambda task, error: answer))
    assert bench.run(request).state == state
    assert next_one(bench) == (request["id"] if answer == "stop" else None)


SHARED: dict[str, dict[str, Any]] = {
    "limit": {"lock_limit": 2},
    "rate": {"lock_rate": "2/m"},
    "key and limit": {"lock_key": ["{n}", Limit("k", 2)]},
}


@pytest.mark.parametrize("options", SHARED.values(), ids=SHARED)
@pytest.mark.parametrize("policy", ["function", "setting"])
def test_a_key_that_several_may_have_is_asked_of_none(
    bench: Bench, policy: str, options: dict[str, Any]
) -> None:
    states: list[str] = []

    def body(self: Any, n: int) -> str:
        if n < 2:
            states.append(bench.call(task, n + 1).state)
        return "ran"

    if policy == "setting":
        bench.app.conf.redlock_on_conflict = "stop"
        task = jobs.job(bench, body, **options)
    else:
        task = job(bench, lambda task, error: "stop", body, **options)
    assert bench.call(task, 1).value == "ran"
    assert states == ["SUCCESS"]


def test_a_call_that_cannot_ask_because_others_ask_too_waits(bench: Bench) -> None:
    occupy(bench, sent_us=sent_us(-1))
    request = bench.send(job(bench))
    bench.run(request)
    again = bench.receive()
    # Its own request is gone, and another call of the same moment has it.
    free(bench, COMPANION)
    sent = round(request["redlock"]["sent"] * 1_000_000)
    owned_by(bench, "twin", Role.QUEUED, COMPANION, sent_us=sent)
    assert bench.run(again).state == "RETRY"
    assert next_one(bench) == "twin"


def next_call_has_the_place(bench: Bench) -> None:
    """Let another call, that was sent later, be the next to run."""
    free(bench, COMPANION)
    owned_by(bench, "next", Role.QUEUED, COMPANION, sent_us=sent_us(60))


def test_a_call_that_others_gave_way_to_does_not_end_for_a_newer_one(bench: Bench) -> None:
    task = job(bench, lock_mode="until_and_while_executing")
    late = send_tick(bench, task, tick_now(-60))
    other = occupy(bench, sent_us=sent_us(-10))
    assert is_duplicate(task.delay())
    assert bench.run(late).state == "RETRY"
    other.release()
    assert bench.run(bench.receive()).value == "ran"


@pytest.mark.parametrize("policy", ["stop", lambda task, error: "skip"], ids=["stop", "function"])
@pytest.mark.parametrize("place", ["the running call's", "the next call's"])
def test_a_paused_key_decides_before_the_age_of_calls(
    bench: Bench, place: str, policy: Any
) -> None:
    other = occupy(bench, sent_us=sent_us(-1))
    if place == "the next call's":
        next_call_has_the_place(bench)
    bench.elsewhere.pause("k", 60)
    outcome = bench.run(bench.send(job(bench, policy)))
    assert (outcome.state, outcome.value.when > 50) == ("RETRY", True)
    assert value(bench) == other.owner


def asked_by(bench: Bench, task: Any) -> tuple[Thread, list[Any]]:
    """Call a task eagerly in another thread, which asks and waits there; its result comes later."""
    results: list[Any] = []
    thread = Thread(target=lambda: results.append(task.apply()))
    thread.start()
    wait_until(lambda: next_one(bench) is not None, message="to ask")
    return thread, results


def test_an_eager_call_asks_and_waits_in_its_place(bench: Bench) -> None:
    other = occupy(bench, sent_us=sent_us(-1))
    thread, results = asked_by(bench, job(bench))
    first = value(bench, COMPANION)
    wait_until(lambda: value(bench, COMPANION) not in (None, first), message="to ask again")
    other.release()
    thread.join()
    assert results[0].result == "ran"


def test_a_call_that_ends_as_replaced_gives_its_place_up(bench: Bench) -> None:
    one = occupy(bench, sent_us=sent_us(-1))
    request = bench.send(job(bench, lock_key=["k", "l"]))
    bench.run(request)
    one.release()
    places = ("redlock:l", f"{COMPANION[:-1]}l")
    owned_by(bench, "newer", Role.RUNNING, *places, sent_us=sent_us())
    assert bench.run(bench.receive()).state == "IGNORED"
    wait_until(lambda: value(bench, COMPANION) is None, message="the place stayed")


def test_a_call_that_could_not_be_requeued_gives_its_place_up(bench: Bench) -> None:
    occupy(bench, sent_us=sent_us(-1))
    request = bench.send(job(bench, acks_late=True))
    break_broker(bench)
    assert bench.run(request).state == "REJECTED"
    wait_until(lambda: value(bench, COMPANION) is None, message="the place stayed")


def stop_all(task: Any, error: LockContended) -> str:
    return "stop"


@pytest.mark.parametrize("policy", ["stop", stop_all], ids=["stop", "function"])
@pytest.mark.parametrize("sent", [Bench.send, send_tick_now], ids=["call", "tick"])
def test_a_call_whose_worker_died_before_it_was_requeued_takes_its_place_again(
    bench: Bench, policy: Any, sent: Any
) -> None:
    other = occupy(bench, sent_us=sent_us(-1), due_us=sent_us(-1))
    request = sent(bench, job(bench, policy, acks_late=True))
    bench.run(request)
    bench.receive()
    other.release()
    before = counters()
    request["delivery_info"]["redelivered"] = True
    assert bench.run(request).value == "ran"
    assert "task_replaced" not in told(before)


def test_a_message_of_a_tick_takes_the_place_of_another_one_of_it(bench: Bench) -> None:
    other = occupy(bench, due_us=sent_us(-1))
    task, due = job(bench), tick_now()
    one, another = (send_tick(bench, task, due) for _ in range(2))
    for request in (one, another):
        assert bench.run(request).state == "RETRY"
    again = [bench.receive(), bench.receive()]
    other.release()
    assert sorted(bench.run(request).state for request in again) == ["IGNORED", "SUCCESS"]


def test_a_call_that_is_still_waited_for_asks_for_its_place_again_without_its_function(
    bench: Bench,
) -> None:
    asked: list[str | None] = []

    def stop(task: Any, error: LockContended) -> str:
        asked.append(error.holder)
        return "stop"

    other = occupy(bench, sent_us=sent_us(-1))
    request = bench.send(job(bench, stop, acks_late=True))
    for _ in range(2):
        assert bench.run(request).state == "RETRY"
        bench.receive()
    assert (set(asked), next_one(bench)) == ({other.owner}, request["id"])


def test_an_eager_call_deep_inside_a_body_does_not_ask_that_body(bench: Bench) -> None:
    def body(self: Any, deep: bool = False) -> Any:
        if deep:
            return None
        caller.apply()
        return value(bench, COMPANION) == value(bench)

    task = job(bench, body=body)
    caller = bench.task(lambda self: task.apply((True,)).state, name="caller", bind=True)
    assert bench.call(task).value is True


def test_an_eager_call_that_waits_ends_once_a_newer_is_the_next(bench: Bench) -> None:
    occupy(bench, sent_us=sent_us(-1))
    task = job(bench, lock_give_up_after=TIMEOUT)
    thread, results = asked_by(bench, task)
    newer = bench.send(task)
    assert bench.run(newer).state == "RETRY"
    thread.join()
    assert (results[0].state, next_one(bench)) == ("IGNORED", newer["id"])
