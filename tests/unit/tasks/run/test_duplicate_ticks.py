"""What becomes of a tick when its messages meet before one of them has brought it to its end."""

from __future__ import annotations

from typing import Any

import pytest
from celery.exceptions import Ignore, Reject

from celery_redlock import is_skipped
from celery_redlock.signals import task_skipped, tick_missed
from celery_redlock.tasks.rules.facts import Role
from celery_redlock.tasks.ticks.tick_context import connect_publishes, sending_tick
from tests.support.cases import first_of
from tests.support.tasks import Bench
from tests.support.ticks import mark, send_tick, tick, tick_now
from tests.support.unique import free, owned_by, role
from tests.unit.tasks.jobs import ALL_MODES, counting, job, raising, redelivered, retry_once

POLICIES = ("existing", "raise", "replace")
LINKED = {"link": {"task": "celery.ping", "args": (), "kwargs": {}, "options": {}}}


@pytest.fixture(autouse=True)
def connected() -> None:
    """Let publishes find the tick that they carry."""
    connect_publishes()


def publish(bench: Bench, task: Any, **options: Any) -> dict[str, Any]:
    """Send a task as one of several beats does, and take its message out of the queue."""
    with sending_tick(task.name, tick()):
        task.apply_async(**options)
    return bench.receive()


@pytest.mark.parametrize("policy", first_of(POLICIES))
@pytest.mark.parametrize("options", [{}, LINKED], ids=["plain", "tied"])
@pytest.mark.parametrize("first_to_come", [0, 1, 2])
def test_a_tick_of_three_beats_runs_once_whichever_message_comes_first(
    bench: Bench, mode: str, policy: str, options: dict[str, Any], first_to_come: int
) -> None:
    task, runs = counting(job, bench, lock_mode=mode, lock_on_duplicate=policy)
    waiting = [publish(bench, task, **options) for _ in range(3)]
    waiting.insert(0, waiting.pop(first_to_come))
    while waiting:
        bench.run(waiting.pop(0))
        waiting += [bench.receive() for _ in range(bench.queue_length)]
        waiting = [message for message in waiting if message["task"] == "job"]
    assert len(runs) == 1


def test_the_lock_of_a_message_that_waits_is_not_replaced_by_a_copy(bench: Bench) -> None:
    task = job(bench, lock_mode="until_executed", lock_on_duplicate="replace")
    first = publish(bench, task)
    before = role(bench), bench.node.state.owner("redlock:k", bench.node.now_us())
    publish(bench, task)
    after = role(bench), bench.node.state.owner("redlock:k", bench.node.now_us())
    assert (before, first["redlock"]["lock"]["owner"]) == (after, before[1])


def test_a_copy_that_waits_for_another_message_leaves_no_mark(bench: Bench) -> None:
    task = job(bench, lock_mode="until_executed")
    publish(bench, task, **LINKED)
    copy = publish(bench, task, **LINKED)
    assert bench.run(copy).state == "IGNORED"
    assert (role(bench, mark(bench, tick())), bench.queue_length) == (None, 1)


def test_two_entries_that_are_due_at_once_are_no_copies(bench: Bench) -> None:
    task = job(bench, lock_mode="until_executed", lock_skip_result="skipped")
    publish(bench, task, **LINKED)
    with sending_tick(task.name, tick(entry="other")):
        task.apply_async(**LINKED)
    assert bench.run(bench.receive()).value == "skipped"


def test_a_copy_that_came_too_late_does_not_keep_a_lost_run_from_its_repetition(
    bench: Bench,
) -> None:
    late = tick_now(-100)
    task = job(bench, acks_late=True, lock_starting_deadline=60)
    lost, copy = (send_tick(bench, task, late) for _ in range(2))
    assert is_skipped(bench.run(copy).value)
    assert role(bench, mark(bench, late)) is Role.SKIPPED
    assert bench.run(redelivered(lost)).value == "ran"


@pytest.mark.parametrize(("skipped", "state"), [("the copy", "SUCCESS"), ("itself", "IGNORED")])
def test_a_lost_run_is_repeated_unless_its_own_message_was_skipped(
    bench: Bench, skipped: str, state: str
) -> None:
    task = job(bench, acks_late=True, lock_on_conflict="skip")
    lost, copy = (send_tick(bench, task, tick()) for _ in range(2))
    other = owned_by(bench, "the next")
    bench.run(copy if skipped == "the copy" else lost)
    other.release()
    assert bench.run(redelivered(lost)).state == state


def test_a_copy_that_met_the_running_body_is_not_too_late_afterwards(bench: Bench) -> None:
    what = tick_now()
    runs: list[str] = []

    def body(self: Any) -> None:
        runs.append(self.request.id)
        if len(runs) == 1:
            bench.run(copy)
        # Its worker is lost: the mark ends, and nothing is said of the tick.
        raise Ignore

    task = job(bench, body, lock_starting_deadline=60)
    first, copy = (send_tick(bench, task, what) for _ in range(2))
    bench.run(first)
    free(bench, mark(bench, what))
    again = bench.receive()
    again["redlock"]["tick"]["due"] -= 100
    bench.run(again)
    assert runs == [first["id"], copy["id"]]


def test_a_retry_of_a_ticks_run_is_never_too_late(bench: Bench) -> None:
    task = job(bench, retry_once, lock_starting_deadline=60)
    bench.run(send_tick(bench, task, tick_now()))
    again = bench.receive()
    again["redlock"]["tick"]["due"] -= 100
    assert bench.run(again).value == "ran"


@pytest.mark.parametrize("any_mode", ALL_MODES)
def test_a_retry_of_a_ticks_run_has_its_tick_and_its_lock(bench: Bench, any_mode: str) -> None:
    ticks: list[Any] = []

    def body(self: Any) -> str:
        ticks.append(self.request.tick)
        return retry_once(self)

    task = job(bench, body, lock_mode=any_mode)
    assert bench.run(publish(bench, task)).state == "RETRY"
    assert bench.run(bench.receive()).value == "ran"
    assert ticks == [tick(), tick()]


def test_a_replacement_of_a_ticks_run_has_its_tick(bench: Bench) -> None:
    ticks: list[Any] = []

    def body(self: Any) -> str:
        ticks.append(self.request.tick)
        if not self.request.replaced_task_nesting:
            raise self.replace(task.s())
        return "ran"

    task = job(bench, body)
    bench.run(send_tick(bench, task, tick()))
    bench.run(bench.receive())
    assert ticks == [tick(), tick()]


def test_what_a_ticks_body_sends_besides_has_no_tick(bench: Bench) -> None:
    def body(self: Any, again: bool = True) -> None:
        if again:
            task.delay(False)

    task = job(bench, body)
    bench.run(send_tick(bench, task, tick()))
    assert "tick" not in (bench.receive().get("redlock") or {})


SKIPS: dict[str, tuple[dict[str, Any], Any]] = {
    "missed": ({"lock_starting_deadline": 60}, tick_missed),
    "in conflict": ({"lock_on_conflict": "skip"}, task_skipped),
}


@pytest.mark.parametrize("how", SKIPS)
def test_a_copy_that_meets_one_that_is_just_being_skipped_does_not_run(
    bench: Bench, how: str
) -> None:
    options, signal = SKIPS[how]
    task, runs = counting(job, bench, **options)
    what = tick_now(-100)
    first, copy = (send_tick(bench, task, what) for _ in range(2))
    other = None if how == "missed" else owned_by(bench, "another")

    def meanwhile(**_: Any) -> None:
        bench.run(copy)

    signal.connect(meanwhile)
    bench.run(first)
    signal.disconnect(meanwhile)
    if other is not None:
        other.release()
    assert bench.run(bench.receive()).state == "IGNORED"
    assert runs == []


@pytest.mark.parametrize("how", ["retry", "replace"])
@pytest.mark.parametrize("options", [{}, LINKED], ids=["plain", "tied"])
def test_a_late_copy_does_not_withdraw_what_goes_on_with_its_tick(
    bench: Bench, mode: str, how: str, options: dict[str, Any]
) -> None:
    runs: list[str] = []

    def body(self: Any) -> None:
        if how == "retry" and not self.request.retries:
            raise self.retry(countdown=0)
        if how == "replace" and not self.request.replaced_task_nesting:
            raise self.replace(task.s())
        runs.append(self.request.id)

    task = job(bench, body, lock_mode=mode, lock_on_duplicate="replace")
    bench.run(publish(bench, task, **options))
    with sending_tick(task.name, tick()):
        task.apply_async(**options)
    for message in [bench.receive() for _ in range(bench.queue_length)]:
        bench.run(message)
    assert len(runs) == 1


@pytest.mark.parametrize("any_mode", ALL_MODES)
def test_a_body_may_send_itself_anew_under_its_own_id(bench: Bench, any_mode: str) -> None:
    runs: list[int] = []

    def body(self: Any, number: int = 0) -> None:
        runs.append(number)
        if number < 1:
            task.apply_async((number + 1,), task_id=self.request.id)

    task = job(bench, body, lock_mode=any_mode)
    bench.run(publish(bench, task))
    bench.run(bench.receive())
    assert runs == [0, 1]


@pytest.mark.parametrize("error", [Ignore(), Reject()], ids=["Ignore", "Reject"])
def test_another_leaders_message_does_not_run_what_ended_without_an_outcome(
    bench: Bench, error: Exception
) -> None:
    task, runs = counting(job, bench, raising(error))
    for nonce in ("one", "two"):
        message = send_tick(bench, task, tick(), task_id="of the tick")
        message["redlock"]["nonce"] = nonce
        bench.run(message)
    assert runs == ["of the tick"]


def test_another_leaders_late_message_does_not_keep_a_lost_run_from_its_repetition(
    bench: Bench,
) -> None:
    late = tick_now(-100)
    task, runs = counting(job, bench, acks_late=True, lock_starting_deadline=60)
    lost, copy = (send_tick(bench, task, late, task_id="of the tick") for _ in range(2))
    copy["redlock"]["nonce"] = "another"
    bench.run(copy)
    bench.run(redelivered(lost))
    assert runs == ["of the tick"]


@pytest.mark.parametrize("policy", ["existing", "raise"])
@pytest.mark.parametrize("options", [{}, LINKED], ids=["plain", "tied"])
def test_no_tick_makes_way_for_an_earlier_one_that_may_be_too_late(
    bench: Bench, policy: str, options: dict[str, Any]
) -> None:
    runs: list[float] = []
    task = job(
        bench,
        lambda self: runs.append(self.request.tick.due),
        lock_mode="until_executed",
        lock_on_duplicate=policy,
        lock_starting_deadline=60,
    )
    early, due = tick_now(-100), tick_now(-1)
    for what in (early, due):
        with sending_tick(task.name, what):
            task.apply_async(**options)
    messages = [bench.receive() for _ in range(2)]
    for message in reversed(messages):
        bench.run(message)
    assert runs == []
    bench.run(bench.receive())
    assert runs == [due.due]
