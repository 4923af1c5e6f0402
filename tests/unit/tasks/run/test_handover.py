"""A running task's lock goes to the message that continues it."""

from __future__ import annotations

from typing import Any

import pytest
from celery import chain
from celery.exceptions import Reject, Retry

from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.rules.facts import Role
from tests.support.tasks import Bench
from tests.support.unique import declare, holder, left, mark, role, value
from tests.support.waiting import wait_until
from tests.unit.tasks.jobs import before_next, break_broker, raising, retry_once

HANDED_ON = ("until_executed", "until_expired")


@pytest.fixture(params=HANDED_ON)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_retry_gets_the_lock_when_the_run_before_it_has_ended(bench: Bench, mode: str) -> None:
    bench.run(bench.send(declare(bench, retry_once, lock_mode=mode)))
    envelope = Envelope.read(bench.receive())
    assert (value(bench), envelope.handovers) == (envelope.reservation.owner, 1)


def test_during_the_run_the_lock_is_not_the_retrys_yet(bench: Bench) -> None:
    def body(self: Any) -> Any:
        self.retry(countdown=1, throw=False)
        return str(role(bench))

    assert bench.call(declare(bench, body)).value == Role.RUNNING


def test_what_was_handed_on_stays_for_as_long_as_a_message_may_wait(bench: Bench) -> None:
    bench.run(bench.send(declare(bench, retry_once, lock_queue_ttl=500)))
    wait_until(lambda: left(bench) > 400, message="it was not lengthened")


def test_after_the_last_retry_the_lock_is_as_after_any_run(bench: Bench, mode: str) -> None:
    bench.run(bench.send(declare(bench, retry_once, lock_mode=mode)))
    assert bench.run(bench.receive()).state == "SUCCESS"
    assert role(bench) == (Role.FINISHED if mode == "until_expired" else None)


def test_a_retry_that_is_not_raised_gets_the_lock_too(bench: Bench) -> None:
    runs: list[int] = []

    def body(self: Any) -> None:
        runs.append(self.request.retries)
        if len(runs) == 1:
            self.retry(countdown=1, throw=False)

    request = bench.send(declare(bench, body))
    assert bench.run(request).state == "SUCCESS"
    assert (role(bench), role(bench, mark(bench, request))) == (Role.QUEUED, Role.FINISHED)
    bench.run(bench.receive())
    assert (runs, value(bench)) == ([0, 1], None)


def test_a_retry_that_arrives_before_the_run_has_ended_waits_and_is_no_duplicate(
    bench: Bench,
) -> None:
    outcomes: list[Any] = []
    runs: list[int] = []

    def body(self: Any) -> None:
        runs.append(self.request.retries)
        if len(runs) == 1:
            self.retry(countdown=0, throw=False)
            outcomes.append(bench.run(bench.receive()))

    bench.run(bench.send(declare(bench, body, lock_on_duplicate="raise")))
    assert [one.state for one in outcomes] == ["RETRY"]
    assert str(outcomes[0].value).startswith("requeued for up to ")
    bench.run(bench.receive())
    assert (runs, value(bench)) == ([0, 1], None)


def test_an_automatic_retry_gets_the_lock(bench: Bench) -> None:
    def body(self: Any) -> str:
        if self.request.retries == 0:
            raise ConnectionError
        return "ran"

    task = declare(bench, body, autoretry_for=(ConnectionError,), default_retry_delay=1)
    bench.run(bench.send(task))
    assert role(bench) is Role.QUEUED
    assert bench.run(bench.receive()).value == "ran"


def test_a_retry_that_cannot_be_sent_leaves_the_lock_free(bench: Bench) -> None:
    request = bench.send(declare(bench, retry_once))
    break_broker(bench)
    outcome = bench.run(request)
    assert isinstance(outcome.value, Reject)
    assert (value(bench), value(bench, mark(bench, request))) == (None, None)


def test_a_retry_with_other_arguments_takes_a_lock_of_its_own(bench: Bench) -> None:
    def body(self: Any, n: int) -> int:
        if n == 1:
            raise self.retry(args=(2,), countdown=1)
        return n

    request = bench.send(declare(bench, body, lock_key="{n}"), 1)
    bench.run(request)
    assert (value(bench, "redlock:1"), role(bench, "redlock:2")) == (None, Role.QUEUED)
    assert role(bench, mark(bench, request)) is Role.FINISHED
    assert bench.run(bench.receive()).value == 2


def test_a_retry_raised_by_hand_sends_nothing_and_leaves_no_mark(bench: Bench) -> None:
    request = bench.send(declare(bench, raising(Retry("by hand"))))
    assert bench.run(request).state == "RETRY"
    assert (value(bench), value(bench, mark(bench, request))) == (None, None)


def test_a_task_that_replaces_itself_keeps_the_lock(bench: Bench, mode: str) -> None:
    def body(self: Any, n: int = 0) -> Any:
        if n == 0:
            raise self.replace(self.si(1))
        return "replaced"

    request = bench.send(declare(bench, body, lock_mode=mode))
    bench.run(request)
    again = bench.receive()
    envelope = Envelope.read(again)
    assert (again["id"], value(bench)) == (request["id"], envelope.reservation.owner)
    assert role(bench, mark(bench, request)) is Role.FINISHED
    assert bench.run(again).value == "replaced"


def test_the_next_step_of_a_chain_waits_for_the_lock_of_the_step_before_it(bench: Bench) -> None:
    first = declare(bench)
    outcomes: list[Any] = []
    before_next(
        first.backend, "mark_as_done", lambda: outcomes.append(bench.run(bench.receive()).state)
    )
    chain(first.si(), first.si()).apply_async()
    bench.run(bench.receive())
    assert outcomes == ["RETRY"]
    assert bench.run(bench.receive()).value == "ran"


def test_a_message_sent_with_the_tasks_own_id_gets_the_lock(bench: Bench) -> None:
    request = bench.send(
        declare(bench, lambda self: self.apply_async(task_id=self.request.id, countdown=1) and None)
    )
    bench.run(request)
    found = holder(bench)
    assert (found.role, found.task_id) == (Role.QUEUED, request["id"])
    assert bench.receive()["id"] == request["id"]
