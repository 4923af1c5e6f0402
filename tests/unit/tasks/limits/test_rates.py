"""At most so many calls or starts in any window of a period; a message beyond that has a turn."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NoReturn

import pytest
from celery.exceptions import Reject
from kombu.exceptions import OperationalError

from celery_redlock import Rate, is_skipped
from celery_redlock.core.client import Client
from celery_redlock.core.failures import Refusal
from celery_redlock.core.limits import limited_key
from celery_redlock.errors import LockContended, LockNotAcquired
from celery_redlock.tasks.message.envelope import HEADER, Envelope
from celery_redlock.tasks.run.requeue import FIRST_DELAY
from celery_redlock.tasks.run.shown_end import Requeued
from tests.support.tasks import Bench
from tests.support.ticks import send_tick, tick
from tests.support.unique import mark, role
from tests.unit.tasks.jobs import ALL_MODES
from tests.unit.tasks.limits.slots import RATE, rated, taken

#: The modes in which the publisher counts a call, and those in which the worker counts a start.
AT_PUBLISH = ("until_executing", "until_executed", "until_expired")
AT_RUN = ("while_executing", "until_and_while_executing")
#: Of a rate of two in an hour, as slots are kept.
PERIOD = 3672.0


def fill(bench: Bench, rate: str = "2/h") -> None:
    for _ in range(2):
        bench.elsewhere.acquire(Rate("k", rate))


def delay_of(request: dict[str, Any]) -> float:
    return (datetime.fromisoformat(request["eta"]) - datetime.now(UTC)).total_seconds()


@pytest.mark.parametrize("mode", ALL_MODES)
def test_each_call_is_counted_once(bench: Bench, mode: str) -> None:
    task = rated(bench, lock_mode=mode)
    for number in (1, 2):
        assert bench.call(task).value == "ran"
        assert len(taken(bench, RATE)) == number


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_call_is_counted_where_the_lock_is_acquired(bench: Bench, mode: str) -> None:
    bench.send(rated(bench, lock_mode=mode))
    assert len(taken(bench, RATE)) == (1 if mode in AT_PUBLISH else 0)


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_call_beyond_the_rate_is_requeued(bench: Bench, mode: str) -> None:
    task = rated(bench, lock_mode=mode)
    for _ in range(2):
        bench.call(task)
    assert bench.call(task).state == "RETRY"


@pytest.mark.parametrize("mode", ALL_MODES)
def test_the_counted_call_runs_when_the_rate_is_reached_meanwhile(bench: Bench, mode: str) -> None:
    task = rated(bench, lock_mode=mode)
    request = bench.send(task)
    for _ in range(2 - len(taken(bench, RATE))):
        bench.elsewhere.acquire(Rate("k", "2/h"))
    assert bench.run(request).state == ("SUCCESS" if mode in AT_PUBLISH else "RETRY")


@pytest.mark.parametrize("mode", AT_PUBLISH)
def test_a_call_beyond_the_rate_is_refused_under_raise_with_its_next_turn(
    bench: Bench, mode: str
) -> None:
    task = rated(bench, lock_mode=mode, lock_on_duplicate="raise")
    for _ in range(2):
        task.delay()
    with pytest.raises(
        LockContended, match=r"reached its rate of 2 per period; the next slot is free in 3,6"
    ) as c:
        task.delay()
    assert c.value.expires_in == pytest.approx(PERIOD, abs=60)
    assert bench.queue_length == 2


@pytest.mark.parametrize("mode", AT_PUBLISH)
@pytest.mark.parametrize("policy", ["existing", "replace"])
def test_a_call_beyond_the_rate_is_sent_under_other_policies(
    bench: Bench, mode: str, policy: str
) -> None:
    task = rated(bench, lock_mode=mode, lock_on_duplicate=policy)
    results = {task.delay().id for _ in range(3)}
    assert bench.queue_length == len(results) == 3


def test_a_call_that_could_not_be_sent_is_counted(bench: Bench, break_broker: Any) -> None:
    """A slot of a rate is never given back."""
    task = rated(bench)
    break_broker()
    with pytest.raises(OperationalError):
        task.delay()
    assert len(taken(bench, RATE)) == 1


@pytest.mark.parametrize("mode", AT_RUN)
def test_a_message_beyond_the_rate_comes_back_at_its_turn(bench: Bench, mode: str) -> None:
    task = rated(bench, lock_mode=mode, lock_key=None, lock_rate="2/m")
    for _ in range(2):
        bench.call(task)
    for place in (0, 1):
        bench.call(task)
        again = bench.receive()
        assert delay_of(again) == pytest.approx(61.2, abs=5), place
        assert again[HEADER]["requeues"] == 1


def test_each_waiter_has_a_turn_of_its_own(bench: Bench) -> None:
    task = rated(bench, lock_mode="while_executing", lock_rate="1/m")
    bench.call(task)
    delays = []
    for _ in range(3):
        bench.call(task)
        delays.append(delay_of(bench.receive()))
    steps = [later - earlier for earlier, later in pairwise(delays)]
    assert delays[0] == pytest.approx(61.2, abs=5)
    assert steps == [pytest.approx(61.2, abs=5)] * 2


def test_one_whose_turn_ends_in_a_split_vote_comes_back_soon(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = limited_key(Rate("k", "2/h"))

    def split(*_: object, **__: object) -> NoReturn:
        raise Refusal(key, None, PERIOD, True, (key,), (key,)).error(
            "nodes granted different slots"
        )

    monkeypatch.setattr(Client, "acquire_for_task", split)
    bench.call(rated(bench, lock_mode="while_executing"))
    assert delay_of(bench.receive()) <= FIRST_DELAY


def test_the_requeue_states_the_next_turn_in_words(bench: Bench) -> None:
    fill(bench)
    outcome = bench.call(rated(bench, lock_mode="while_executing"))
    assert isinstance(outcome.value, Requeued)
    assert "lock 'k' has its next turn in 3,6" in str(outcome.value)


def test_nobody_wakes_a_message_that_waits_for_a_rate(bench: Bench) -> None:
    fill(bench)
    bench.call(rated(bench, lock_mode="while_executing"))
    assert Envelope.read(bench.receive()).waits_for == ()


def test_a_message_is_requeued_for_no_longer_than_a_broker_keeps_it(bench: Bench) -> None:
    bench.app.conf.broker_transport_options = {"visibility_timeout": 300}
    fill(bench)
    bench.call(rated(bench, lock_mode="while_executing"))
    assert delay_of(bench.receive()) == pytest.approx(150, abs=5)


def test_a_message_is_requeued_to_the_end_of_its_time_and_gives_up_then(bench: Bench) -> None:
    fill(bench)
    task = rated(bench, lock_mode="while_executing", lock_give_up_after=60)
    bench.call(task)
    again = bench.receive()
    assert delay_of(again) == pytest.approx(60, abs=5)
    again[HEADER]["first_seen"] -= 60
    outcome = bench.run(again)
    assert (outcome.state, type(outcome.value)) == ("FAILURE", LockNotAcquired)


def test_a_turn_that_is_near_is_waited_for_in_the_process(bench: Bench) -> None:
    task = rated(bench, lock_mode="while_executing", lock_rate="1/s", lock_wait=10)
    before = time.monotonic()
    bench.call(task)
    assert bench.call(task).value == "ran"
    assert time.monotonic() - before > 1.0


def test_under_apply_a_call_beyond_the_rate_waits_in_place(bench: Bench) -> None:
    task = rated(bench, lambda self: time.monotonic(), lock_mode="while_executing", lock_rate="1/s")
    before = time.monotonic()
    times = [task.apply().get() for _ in range(2)]
    assert times[1] - before > 1.0


def test_tasks_that_are_always_eager_keep_to_the_rate(bench: Bench) -> None:
    bench.app.conf.task_always_eager = True
    task = rated(bench, lambda self: time.monotonic(), lock_rate="1/s")
    before = time.monotonic()
    times = [task.delay().get() for _ in range(2)]
    assert times[1] - before > 1.0


def test_skip_skips_a_start_beyond_the_rate(bench: Bench) -> None:
    fill(bench)
    task = rated(bench, lock_mode="while_executing", lock_on_conflict="skip")
    assert is_skipped(bench.call(task).value)


def test_raise_fails_a_start_beyond_the_rate(bench: Bench) -> None:
    fill(bench)
    task = rated(bench, lock_mode="while_executing", lock_on_conflict="raise")
    outcome = bench.call(task)
    assert (outcome.state, type(outcome.value)) == ("FAILURE", LockContended)


def test_reject_rejects_a_start_beyond_the_rate(bench: Bench) -> None:
    fill(bench)
    task = rated(bench, lock_mode="while_executing", lock_on_conflict="reject", acks_late=True)
    outcome = bench.call(task)
    assert isinstance(outcome.value, Reject)
    assert not outcome.value.requeue


def test_a_message_beyond_a_rate_does_not_count(bench: Bench) -> None:
    keys = [Rate("k", "2/h"), "plain"]
    task = rated(bench, lock_mode="while_executing", lock_rate=None, lock_key=keys)
    bench.elsewhere.acquire("plain", ttl=60)
    assert bench.call(task).state == "RETRY"
    assert taken(bench, RATE) == {}


def test_any_number_of_bodies_runs_at_once_under_a_rate(bench: Bench) -> None:
    def body(self: Any, depth: int) -> int:
        if depth:
            return bench.call(self, depth - 1).value + 1
        return 0

    task = rated(bench, body, lock_mode="while_executing", lock_rate="5/h")
    assert bench.call(task, 4).value == 4


def test_a_retry_is_another_start(bench: Bench) -> None:
    def body(self: Any) -> None:
        if not self.request.retries:
            raise self.retry(countdown=1)

    bench.call(rated(bench, body, lock_mode="while_executing"))
    assert bench.run(bench.receive()).state == "SUCCESS"
    assert len(taken(bench, RATE)) == 2


def test_a_retry_that_gets_the_slot_of_its_limit_is_the_same_call(bench: Bench) -> None:
    def body(self: Any) -> None:
        if not self.request.retries:
            raise self.retry(countdown=1)

    bench.call(rated(bench, body, lock_limit=2))
    assert bench.run(bench.receive()).state == "SUCCESS"
    assert len(taken(bench, RATE)) == 1


@pytest.mark.parametrize("mode", AT_PUBLISH)
def test_a_redelivery_is_not_counted_again(bench: Bench, mode: str) -> None:
    ran: list[int] = []
    request = bench.send(rated(bench, lambda self: ran.append(1), lock_mode=mode))
    for redelivered in (False, True):
        info = {**request["delivery_info"], "redelivered": redelivered}
        bench.run(request, delivery_info=info)
    assert (ran, len(taken(bench, RATE))) == ([1], 1)


@pytest.mark.parametrize("mode", AT_PUBLISH)
def test_a_message_with_a_rate_alone_leaves_its_marker(bench: Bench, mode: str) -> None:
    request = bench.send(rated(bench, lock_mode=mode))
    bench.run(request)
    assert str(role(bench, mark(bench, request))) == "finished"


@pytest.mark.parametrize("mode", AT_RUN)
def test_the_body_has_a_lease_of_its_key_and_no_slot(bench: Bench, mode: str) -> None:
    task = rated(bench, lambda self: [self.lease.key, self.lease.slot], lock_mode=mode)
    assert bench.call(task).value == ["k", None]


@pytest.mark.parametrize(("policy", "skipped"), [("requeue", False), ("skip", True)])
def test_a_tick_beyond_the_rate_waits_or_is_skipped(
    bench: Bench, policy: str, skipped: bool
) -> None:
    fill(bench)
    task = rated(bench, lock_mode="while_executing", lock_on_conflict=policy)
    outcome = bench.run(send_tick(bench, task, tick()))
    assert (is_skipped(outcome.value), outcome.state == "RETRY") == (skipped, not skipped)


def test_a_body_under_a_rate_alone_cannot_lose_its_lock(bench: Bench) -> None:
    def body(self: Any) -> float:
        return float(self.lease.expires_in)

    assert bench.call(rated(bench, body, lock_mode="while_executing")).value == math.inf
