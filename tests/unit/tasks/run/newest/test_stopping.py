"""A run that was asked to stop: how it is told, and what it keeps until it has ended."""

from __future__ import annotations

import _thread
from typing import Any

import pytest

from celery_redlock import Limit
from celery_redlock.core.watchdog import process_watchdog
from celery_redlock.errors import LeaseLost, QuorumUnavailable
from celery_redlock.tasks.rules.facts import Role
from celery_redlock.tasks.run.stop_request import STOP_SEEN_WITHIN
from tests.support.tasks import Bench
from tests.support.ticks import mark, send_tick, tick, tick_now
from tests.support.unique import KEY, free, left, role, value
from tests.support.waiting import TIMEOUT, wait_until
from tests.unit.tasks.run.newest.company import job, next_one

# A machine may stand still for as long as is left of this after an extension is due.
TTL = 30.0


def in_another_thread(call: Any) -> None:
    # One call into the interpreter: `Thread.start` is Python code of the body, which the loss may
    # strike half done.
    _thread.start_new_thread(call, ())


def role_once_extended(bench: Bench, place: str = KEY) -> Role | None:
    """Let time pass until what has a place is extended, and return what it does."""
    keys = bench.node.state.keys
    ends = keys[place].expires_at
    bench.let_pass(TTL / 3)
    wait_until(lambda: keys[place].expires_at > ends)
    return role(bench, place)


class Stage:
    """A run that is replaced by a newer one while its body goes on."""

    def __init__(self, bench: Bench, **options: Any) -> None:
        self.bench = bench
        self.caught: list[LeaseLost] = []
        self.options = {"lock_ttl": TTL, **options}
        self.then = lambda: None
        self.send = lambda bench, task: send_tick(bench, task, tick())

    def declare(self, unwind: Any, **options: Any) -> Any:
        def body(self_: Any) -> str:
            try:
                in_another_thread(ask)
                wait_until(lambda: False)
            except LeaseLost as exc:
                self.caught.append(exc)
                wait_until(lambda: states == ["RETRY"])
                return str(unwind(self_))
            return "not told"

        def ask() -> None:
            states.append(self.bench.run(newer).state)
            self.then()
            self.bench.let_pass(STOP_SEEN_WITHIN)

        states: list[str] = []
        task = job(self.bench, "stop", body, **{**self.options, **options})
        newer = send_tick(self.bench, task, tick_now(60))
        return self.send(self.bench, task)


@pytest.mark.parametrize("options", [{}, {"lock_limit": 1}], ids=["key", "limit of one"])
def test_a_run_that_is_replaced_is_interrupted_and_told_why(
    bench: Bench, options: dict[str, Any]
) -> None:
    stage = Stage(bench, **options)
    outcome = bench.run(stage.declare(lambda self: "stopped"))
    assert outcome.value == "stopped"
    (loss,) = stage.caught
    assert loss.reason == "a newer call asked this one to stop"


def test_a_stop_request_is_seen_long_before_a_third_of_the_ttl(bench: Bench) -> None:
    bench.app.conf.redlock_max_ttl = 10 * TIMEOUT
    stage = Stage(bench, lock_ttl=10 * TIMEOUT)
    assert bench.run(stage.declare(lambda self: "stopped")).value == "stopped"


def test_a_run_is_told_why_although_nodes_reply_too_late_at_first(
    bench: Bench, client: Any
) -> None:
    late = [QuorumUnavailable("late"), QuorumUnavailable("late")]
    inspect = client.inspect

    def reply(node_keys: Any) -> Any:
        if late:
            raise late.pop()
        return inspect(node_keys)

    stage = Stage(bench)
    request = stage.declare(lambda self: "stopped")
    client.inspect = reply
    bench.run(request)
    (loss,) = stage.caught
    assert (loss.reason, late) == ("a newer call asked this one to stop", [])


def test_a_run_that_is_replaced_keeps_its_lock_until_it_has_ended(bench: Bench) -> None:
    task = Stage(bench).declare(lambda self: role_once_extended(bench))
    assert bench.run(task).value == "running"
    assert value(bench) is None


def test_it_keeps_its_lock_although_the_key_is_paused_meanwhile(bench: Bench) -> None:
    stage = Stage(bench)
    stage.then = lambda: bench.elsewhere.pause("k", 60)
    assert bench.run(stage.declare(lambda self: role_once_extended(bench))).value == "running"


def test_it_keeps_its_key_beside_the_slot_of_a_limit(bench: Bench) -> None:
    stage = Stage(bench, lock_key=lambda: ["k", Limit("pool", 3)])
    assert bench.run(stage.declare(lambda self: role_once_extended(bench))).value == "running"
    assert [loss.reason for loss in stage.caught] == ["a newer call asked this one to stop"]


def test_it_keeps_its_lock_although_nodes_reply_too_late_for_its_first_try(
    bench: Bench, client: Any
) -> None:
    late = [QuorumUnavailable("late")]
    acquire = client.acquire_for_task

    def reply(*args: Any, **options: Any) -> Any:
        if options.get("is_held") and late:
            raise late.pop()
        return acquire(*args, **options)

    request = Stage(bench).declare(lambda self: role_once_extended(bench))
    client.acquire_for_task = reply
    assert (bench.run(request).value, late) == ("running", [])


def test_it_keeps_its_lock_although_the_request_came_to_nothing(bench: Bench, client: Any) -> None:
    inspect = client.inspect

    def undone(node_keys: Any) -> Any:
        found = inspect(node_keys)
        return (found[0], *[found[0]] * (len(found) - 1))

    request = Stage(bench).declare(lambda self: role_once_extended(bench))
    client.inspect = undone
    assert bench.run(request).value == "running"


def test_a_run_that_is_replaced_keeps_its_mark_until_it_has_ended(bench: Bench) -> None:
    place = mark(bench, tick())
    task = Stage(bench).declare(lambda self: role_once_extended(bench, place))
    assert bench.run(task).value == "running"
    assert role(bench, place) is Role.FINISHED


def test_a_run_that_is_replaced_knows_that_its_lease_is_over(bench: Bench) -> None:
    assert bench.run(Stage(bench).declare(lambda self: self.lease.is_valid)).value == "False"


def test_a_run_that_is_replaced_does_not_warn_of_a_second_body(bench: Bench, caplog: Any) -> None:
    bench.run(Stage(bench).declare(lambda self: "stopped"))
    assert "ended without its lock" not in caplog.text


def test_a_run_that_ends_just_when_it_is_asked_does_not_warn(bench: Bench, caplog: Any) -> None:
    def body(self: Any) -> str:
        bench.run(newer)
        return next_one(bench) or "not asked"

    task = job(bench, "stop", body)
    newer = send_tick(bench, task, tick(60))
    assert bench.run(send_tick(bench, task, tick())).value == newer["id"]
    assert "ended without its lock" not in caplog.text


def test_a_flagged_run_that_is_replaced_keeps_its_lock_while_it_goes_on(bench: Bench) -> None:
    def ask() -> None:
        bench.run(newer)
        bench.let_pass(STOP_SEEN_WITHIN)

    def body(self: Any) -> Any:
        owner = value(bench)
        in_another_thread(ask)
        # The lock is kept under another owner value, and time counts once that is watched.
        wait_until(lambda: value(bench) != owner)
        wait_until(
            lambda: value(bench) in {lease.owner for lease in [*process_watchdog()._watches]}
        )
        return [self.lease.is_valid, role_once_extended(bench)]

    task = job(bench, "stop", body, lock_ttl=TTL, lock_on_lost="flag")
    newer = send_tick(bench, task, tick(60))
    assert bench.run(send_tick(bench, task, tick())).value == [False, "running"]


def test_a_run_whose_lock_is_taken_away_is_not_told_of_a_newer_run(bench: Bench) -> None:
    caught: list[LeaseLost] = []

    def body(self: Any) -> None:
        free(bench)
        try:
            in_another_thread(lambda: bench.let_pass(STOP_SEEN_WITHIN))
            wait_until(lambda: False)
        except LeaseLost as exc:
            caught.append(exc)

    bench.run(send_tick(bench, job(bench, "stop", body, lock_ttl=TTL), tick()))
    assert [loss.reason for loss in caught] == ["a quorum of nodes no longer has it"]


@pytest.mark.parametrize("sent_by", ["beat", "program"])
def test_the_minimum_hold_of_a_replaced_run_keeps_the_newer_away(
    bench: Bench, sent_by: str
) -> None:
    stage = Stage(bench, lock_at_least_for=50)
    if sent_by == "program":
        stage.send = Bench.send
    assert bench.run(stage.declare(lambda self: "stopped")).value == "stopped"
    assert (role(bench), 20 < left(bench) <= 50) == (Role.RUNNING, True)
    assert bench.run(bench.receive()).state == "RETRY"
