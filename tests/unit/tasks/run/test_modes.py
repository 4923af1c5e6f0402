"""A unique task from its publish to its end: what is held when, and what is left."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from celery_redlock import RedlockTask, current_lease
from celery_redlock.tasks.message.envelope import HEADER, Envelope
from celery_redlock.tasks.rules.facts import Role
from tests.support.tasks import Bench
from tests.support.unique import (
    KEY,
    QUEUE,
    WINDOW,
    declare,
    free,
    left,
    mark,
    owned_by,
    role,
    value,
)
from tests.support.waiting import wait_until
from tests.unit.tasks.jobs import before_next, raising, redelivered, sent_without

IN_BODY = ("until_executed", "until_and_while_executing", "until_expired")


def after(mode: str) -> Role | None:
    """Return what the key says when a body has ended."""
    return Role.FINISHED if mode == "until_expired" else None


def test_when_the_task_has_run_the_key_is_let_go_and_the_message_marked_as_finished(
    bench: Bench, mode: str
) -> None:
    request = bench.send(declare(bench, lock_mode=mode))
    assert bench.run(request).value == "ran"
    assert (role(bench), role(bench, mark(bench, request))) == (after(mode), Role.FINISHED)
    assert value(bench, QUEUE) is None


def test_a_body_is_under_the_key_where_the_mode_says_so(bench: Bench, mode: str) -> None:
    task = declare(bench, lambda self: [role(bench), role(bench, QUEUE)], lock_mode=mode)
    assert bench.call(task).value == [Role.RUNNING if mode in IN_BODY else None, None]


def test_a_body_has_a_lease_of_its_key_and_a_token_where_that_is_its_own(
    bench: Bench, mode: str
) -> None:
    def body(self: Any) -> list[Any]:
        lease = current_lease()
        has_token = self.request.fencing_token is not None
        return [self.lease is lease, lease and [lease.key, *lease.keys], has_token]

    has = mode in IN_BODY
    keys = ["k", "k"] if has else None
    assert bench.call(declare(bench, body, lock_mode=mode)).value == [True, keys, has]


def test_the_lock_is_held_until_the_result_is_stored(bench: Bench, mode: str) -> None:
    seen: list[Any] = []

    def look() -> None:
        seen.append((role(bench), role(bench, mark(bench, request)), current_lease()))

    task = declare(bench, lock_mode=mode)
    request = bench.send(task)
    before_next(task.backend, "store_result", look)
    bench.run(request)
    assert seen == [(Role.RUNNING if mode in IN_BODY else None, Role.RUNNING, None)]


@pytest.mark.parametrize(
    ("raised", "finished"),
    [
        (ValueError("no"), True),
        (SoftTimeLimitExceeded(), True),
        (Ignore(), False),
        (Reject("no", requeue=False), False),
        (SystemExit(1), False),
    ],
    ids=["exception", "soft time limit", "ignore", "reject", "exit"],
)
def test_however_the_body_ends_the_key_is_let_go(
    bench: Bench, mode: str, raised: BaseException, finished: bool
) -> None:
    request = bench.send(declare(bench, raising(raised), lock_mode=mode))
    with suppress(SystemExit):
        bench.run(request)
    keeps_window = finished or type(raised) is Ignore
    assert role(bench) == (after(mode) if keeps_window else None)
    assert role(bench, mark(bench, request)) == (Role.FINISHED if finished else None)
    assert value(bench, QUEUE) is None


def test_a_failure_that_is_not_acknowledged_leaves_the_work_to_who_gets_the_message_next(
    bench: Bench, mode: str
) -> None:
    options = {"lock_mode": mode, "acks_late": True, "acks_on_failure_or_timeout": False}
    request = bench.send(declare(bench, raising(ValueError("no")), **options))
    bench.run(request)
    assert (value(bench), value(bench, mark(bench, request))) == (None, None)


@pytest.mark.parametrize("mode", ["until_executed", "until_expired"])
def test_a_message_that_goes_back_to_the_broker_gets_its_lock_back(bench: Bench, mode: str) -> None:
    def body(self: Any) -> str:
        tokens.append(self.request.fencing_token)
        if len(tokens) == 1:
            raise Reject("later", requeue=True)
        return "ran"

    tokens: list[int] = []
    request = bench.send(declare(bench, body, lock_mode=mode, acks_late=True))
    bench.run(request)
    assert value(bench) == Envelope.read(request).reservation.owner
    assert value(bench, mark(bench, request)) is None
    assert bench.run(redelivered(request)).value == "ran"
    assert tokens[0] < tokens[1]


@pytest.mark.parametrize("mode", ["until_executed", "until_expired"])
def test_a_message_that_is_acknowledged_when_it_is_rejected_leaves_nothing(
    bench: Bench, mode: str
) -> None:
    request = bench.send(declare(bench, raising(Reject("later", requeue=True)), lock_mode=mode))
    bench.run(request)
    assert (value(bench), value(bench, mark(bench, request))) == (None, None)


@pytest.mark.parametrize(
    ("raised", "freed"),
    [
        (Ignore(), True),
        (Reject("no", requeue=False), True),
        (Reject("later", requeue=True), False),
    ],
    ids=["ignore", "reject", "reject to the queue"],
)
def test_a_conflict_function_that_ends_the_task_frees_its_lock_unless_its_message_comes_again(
    bench: Bench, raised: Exception, freed: bool
) -> None:
    options = {"lock_mode": "until_and_while_executing", "lock_on_conflict": raising(raised)}
    request = bench.send(declare(bench, acks_late=True, **options))
    owned_by(bench, "other")
    bench.run(request)
    assert role(bench, QUEUE) is (None if freed else Role.QUEUED)


def test_a_message_without_a_lock_that_goes_back_leaves_nothing(bench: Bench) -> None:
    request = sent_without(bench, raising(Reject("later", requeue=True)))
    bench.run(request)
    assert (value(bench), value(bench, mark(bench, request))) == (None, None)


def test_a_message_from_elsewhere_takes_its_lock_when_it_arrives(bench: Bench, mode: str) -> None:
    request = sent_without(bench, lock_mode=mode)
    assert HEADER not in request
    assert bench.run(request).value == "ran"
    assert (role(bench), role(bench, mark(bench, request))) == (after(mode), Role.FINISHED)


def test_a_lock_that_ended_in_the_queue_is_taken_again_on_arrival(bench: Bench, mode: str) -> None:
    request = bench.send(declare(bench, lock_mode=mode))
    free(bench, KEY)
    free(bench, QUEUE)
    assert bench.run(request).value == "ran"


def test_the_mark_lasts_for_the_dedupe_window(bench: Bench) -> None:
    request = bench.send(declare(bench, lock_dedupe_window=500))
    bench.run(request)
    assert 450 < left(bench, mark(bench, request)) <= 500


def test_a_window_that_is_over_when_the_body_ends_leaves_nothing(bench: Bench) -> None:
    request = bench.send(declare(bench, lock_mode="until_expired"))
    request[HEADER]["window_until"] = 1.0
    bench.run(request)
    assert value(bench) is None


def test_without_a_header_the_window_counts_from_the_arrival(bench: Bench) -> None:
    bench.run(sent_without(bench, lock_mode="until_expired"))
    assert WINDOW - 30 < left(bench) <= WINDOW


@pytest.mark.parametrize("mode", ["until_executed", "until_and_while_executing"])
def test_a_minimum_hold_outlasts_the_body(bench: Bench, mode: str) -> None:
    bench.run(bench.send(declare(bench, lock_mode=mode, lock_at_least_for=50)))
    assert role(bench) is Role.RUNNING
    assert 20 < left(bench) <= 50


def test_a_lock_of_another_key_template_is_given_up_and_the_task_runs(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    request = bench.send(declare(bench))
    request[HEADER]["lock"]["keys"] = ["redlock:before"]
    bench.node.state.keys["redlock:before"] = bench.node.state.keys.pop(KEY)
    assert bench.run(request).value == "ran"
    assert value(bench, "redlock:before") is None
    assert "Make publishers and workers run the same code" in caplog.text


def test_arguments_that_make_no_key_fail_the_task_and_free_its_lock(bench: Bench) -> None:
    request = bench.send(declare(bench, lambda self, n: None, lock_key="{n}"), 1)
    outcome = bench.run({**request, "args": []})
    assert outcome.state == "FAILURE"
    assert value(bench, "redlock:1") is None


@pytest.mark.parametrize(
    ("raised", "acks_late", "freed"),
    [
        (ValueError("no"), True, True),
        (Ignore(), True, True),
        (Reject("later", requeue=True), True, False),
        (Reject("later", requeue=True), False, True),
    ],
    ids=["exception", "ignore", "reject", "reject an acknowledged message"],
)
def test_a_task_that_ends_before_its_body_frees_the_lock_unless_its_message_comes_again(
    bench: Bench, raised: Exception, acks_late: bool, freed: bool
) -> None:
    class Picky(RedlockTask):
        abstract = True

        def before_start(self, *_: Any) -> None:
            raise raised

    request = bench.send(declare(bench, base=Picky, acks_late=acks_late))
    bench.run(request)
    if freed:
        wait_until(lambda: value(bench) is None, message="the lock stayed")
    else:
        assert role(bench) is Role.QUEUED


def test_a_message_cannot_set_the_state_of_its_request(bench: Bench) -> None:
    request = bench.send(declare(bench, lambda self: str(role(bench))))
    assert bench.run({**request, "redlock_state": {"entered": True}}).value == "running"
    assert (value(bench), role(bench, mark(bench, request))) == (None, Role.FINISHED)


def test_a_run_that_nobody_traces_is_finished_at_once(bench: Bench) -> None:
    task = declare(bench)
    request = bench.send(task)
    task.push_request(**{**request, "called_directly": False})
    try:
        assert task() == "ran"
        assert (value(bench), role(bench, mark(bench, request))) == (None, Role.FINISHED)
    finally:
        task.pop_request()
