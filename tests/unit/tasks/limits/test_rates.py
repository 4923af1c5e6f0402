"""At most so many calls or starts in any window of a period; a message beyond that has a turn."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Any

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
from tests.unit.tasks.jobs import (
    ALL_MODES,
    break_broker,
    counting,
    raising,
    redelivered,
    retry_once,
)
from tests.unit.tasks.limits.slots import RATE, rated, taken

#: The modes in which the publisher counts a call, and those in which the worker counts a start.
AT_PUBLISH = ("until_executing", "until_executed", "until_expired")
AT_RUN = ("while_executing", "until_and_while_executing")
#: Of a rate of two in an hour, as slots are kept.
PERIOD = 3672.0


#: Its starts are counted by the worker.
started = partial(rated, lock_mode="while_executing")


@pytest.fixture
def full(bench: Bench) -> None:
    """Use the rate up: two programs have had the key within the hour."""
    for _ in range(2):
        bench.elsewhere.acquire(Rate("k", "2/h"))


def delay_of(request: dict[str, Any]) -> float:
    return (datetime.fromisoformat(request["eta"]) - datetime.now(UTC)).total_seconds()


@pytest.mark.parametrize("mode", ALL_MODES)
def test_each_call_is_counted_once_and_one_beyond_the_rate_is_requeued(
    bench: Bench, mode: str
) -> None:
    task = rated(bench, lock_mode=mode)
    for number in (1, 2):
        assert bench.call(task).value == "ran"
        assert len(taken(bench, RATE)) == number
    assert bench.call(task).state == "RETRY"


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_call_is_counted_where_the_lock_is_acquired(bench: Bench, mode: str) -> None:
    bench.send(rated(bench, lock_mode=mode))
    assert len(taken(bench, RATE)) == (1 if mode in AT_PUBLISH else 0)


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
    with pytest.raises(LockContended, match=r"reached its rate; the next slot is free in 3,6") as c:
        task.delay()
    assert c.value.expires_in == pytest.approx(PERIOD, abs=60)
    assert bench.queue_length == 2


def test_a_call_that_could_not_be_sent_is_counted(bench: Bench) -> None:
    """A slot of a rate is never given back."""
    task = rated(bench)
    break_broker(bench)
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
    task = started(bench, lock_rate="1/m")
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
    split = Refusal(key, None, PERIOD, True, (key,), (key,)).error("nodes granted different slots")
    monkeypatch.setattr(Client, "acquire_for_task", raising(split))
    bench.call(started(bench))
    assert delay_of(bench.receive()) <= FIRST_DELAY


@pytest.mark.usefixtures("full")
def test_the_requeue_states_the_next_turn_in_words(bench: Bench) -> None:
    outcome = bench.call(started(bench))
    assert isinstance(outcome.value, Requeued)
    assert "lock 'k' has its next turn in 3,6" in str(outcome.value)


@pytest.mark.usefixtures("full")
def test_nobody_wakes_a_message_that_waits_for_a_rate(bench: Bench) -> None:
    bench.call(started(bench))
    assert Envelope.read(bench.receive()).waits_for == ()


@pytest.mark.usefixtures("full")
def test_a_message_is_requeued_for_no_longer_than_a_broker_keeps_it(bench: Bench) -> None:
    bench.app.conf.broker_transport_options = {"visibility_timeout": 300}
    bench.call(started(bench))
    assert delay_of(bench.receive()) == pytest.approx(150, abs=5)


@pytest.mark.usefixtures("full")
def test_a_message_is_requeued_to_the_end_of_its_time_and_gives_up_then(bench: Bench) -> None:
    bench.call(started(bench, lock_give_up_after=60))
    again = bench.receive()
    assert delay_of(again) == pytest.approx(60, abs=5)
    again[HEADER]["first_seen"] -= 60
    outcome = bench.run(again)
    assert (outcome.state, type(outcome.value)) == ("FAILURE", LockNotAcquired)


@pytest.mark.parametrize(
    ("how", "mode"),
    [
        ("in the process", "while_executing"),
        ("under apply()", "while_executing"),
        ("where tasks are eager", "until_executed"),
    ],
)
def test_a_turn_that_is_near_is_waited_for(leaping_bench: Bench, how: str, mode: str) -> None:
    bench = leaping_bench
    bench.app.conf.task_always_eager = how == "where tasks are eager"
    options = {"lock_mode": mode, "lock_rate": "1/s", "lock_wait": 10}
    task = rated(bench, lambda self: bench.time.now(), **options)
    calls = {
        "in the process": lambda: bench.call(task).value,
        "under apply()": lambda: task.apply().get(),
        "where tasks are eager": lambda: task.delay().get(),
    }
    first, second = (calls[how]() for _ in range(2))
    assert 1.0 < second - first < 2.0


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize(
    ("policy", "state", "value_type"),
    [
        ("skip", "SUCCESS", dict),
        ("raise", "FAILURE", LockContended),
        ("reject", "REJECTED", Reject),
    ],
)
def test_a_start_beyond_the_rate_follows_its_policy(
    bench: Bench, policy: str, state: str, value_type: type
) -> None:
    outcome = bench.call(started(bench, lock_on_conflict=policy, acks_late=True))
    assert (outcome.state, type(outcome.value)) == (state, value_type)


def test_a_message_that_does_not_start_does_not_count(bench: Bench) -> None:
    task = started(bench, lock_rate=None, lock_key=[Rate("k", "2/h"), "plain"])
    bench.elsewhere.acquire("plain", ttl=60)
    assert bench.call(task).state == "RETRY"
    assert taken(bench, RATE) == {}


def test_any_number_of_bodies_runs_at_once_under_a_rate(bench: Bench) -> None:
    def body(self: Any, depth: int) -> int:
        return bench.call(self, depth - 1).value + 1 if depth else 0

    assert bench.call(started(bench, body, lock_rate="5/h"), 4).value == 4


@pytest.mark.parametrize(
    ("options", "counted"),
    [({"lock_mode": "while_executing"}, 2), ({"lock_limit": 2}, 1)],
    ids=["another start", "the same call if it gets the slot of its limit"],
)
def test_a_retry_is(bench: Bench, options: dict[str, Any], counted: int) -> None:
    bench.call(rated(bench, retry_once, **options))
    assert bench.run(bench.receive()).state == "SUCCESS"
    assert len(taken(bench, RATE)) == counted


@pytest.mark.parametrize("mode", AT_PUBLISH)
def test_a_redelivery_is_not_counted_again(bench: Bench, mode: str) -> None:
    task, runs = counting(rated, bench, lock_mode=mode)
    request = bench.send(task)
    for delivery in (request, redelivered(request)):
        bench.run(delivery)
    assert (len(runs), len(taken(bench, RATE))) == (1, 1)


@pytest.mark.parametrize("mode", AT_PUBLISH)
def test_a_message_with_a_rate_alone_leaves_its_marker(bench: Bench, mode: str) -> None:
    request = bench.send(rated(bench, lock_mode=mode))
    bench.run(request)
    assert str(role(bench, mark(bench, request))) == "finished"


@pytest.mark.parametrize("mode", AT_RUN)
def test_the_body_has_a_lease_of_its_key_and_no_slot(bench: Bench, mode: str) -> None:
    task = rated(bench, lambda self: [self.lease.key, self.lease.slot], lock_mode=mode)
    assert bench.call(task).value == ["k", None]


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize(("policy", "skipped"), [("requeue", False), ("skip", True)])
def test_a_tick_beyond_the_rate_waits_or_is_skipped(
    bench: Bench, policy: str, skipped: bool
) -> None:
    task = started(bench, lock_on_conflict=policy)
    outcome = bench.run(send_tick(bench, task, tick()))
    assert (is_skipped(outcome.value), outcome.state == "RETRY") == (skipped, not skipped)


def test_a_body_under_a_rate_alone_cannot_lose_its_lock(bench: Bench) -> None:
    assert bench.call(started(bench, lambda self: self.lease.expires_in)).value == math.inf
