"""A debounced call waits for newer ones, and the newest runs (`lock_debounce`)."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kombu.exceptions import OperationalError

from celery_redlock.core import client_of
from celery_redlock.errors import ConfigurationError, QuorumUnavailable
from celery_redlock.tasks.config.client import client_for
from celery_redlock.tasks.message.envelope import HEADER, Envelope
from celery_redlock.tasks.message.expiry import PUBLISH_GRACE
from celery_redlock.tasks.publish import unique_publish
from celery_redlock.tasks.rules.facts import Role
from tests.support.skew import clock_off_by
from tests.support.tasks import Bench
from tests.support.ticks import tick_now
from tests.support.unique import holder, left, role
from tests.support.waiting import wait_until
from tests.unit.tasks.jobs import before_next, break_broker, raising

QUIET, AT_MOST = 5.0, 60.0
MODES = ("until_executing", "until_and_while_executing")


class Burst:
    """A debounced task, with what it was run with."""

    def __init__(self, bench: Bench, **options: Any) -> None:
        self.bench = bench
        self.client = client_of(client_for(bench.app))
        self.runs: list[Any] = []
        options = {"lock_debounce": (QUIET, AT_MOST), "lock_key": "k", "lock_wait": 0, **options}
        self.task = bench.task(lambda number: self.runs.append(number), **options)

    def call(self, number: int, at: float = 0.0, **options: Any) -> dict[str, Any]:
        """Call it at a moment in seconds from now, and return the message."""
        with clock_off_by(at, self.bench):
            return self.bench.send(self.task, number, **options)


@pytest.fixture
def burst(bench: Bench) -> Burst:
    return Burst(bench)


pytestmark = pytest.mark.usefixtures("revoked")


def due(message: dict[str, Any]) -> float:
    """Return when a message is due, in seconds since the epoch."""
    return datetime.fromisoformat(message["eta"]).timestamp()


def at(moment: float) -> Any:
    """Return what a moment is like to the microsecond."""
    return pytest.approx(moment, abs=1e-5)


def called(message: dict[str, Any]) -> float:
    """Return when the call of a message was made."""
    return Envelope.read(message).sent


@pytest.mark.parametrize(
    "options", [{}, {"countdown": 0}, {"eta": None}, {"expires": QUIET + 60}], ids=str
)
def test_a_call_is_due_after_the_time_without_another_one(
    burst: Burst, options: dict[str, Any]
) -> None:
    message = burst.call(1, **options)
    assert due(message) == at(called(message) + QUIET)


def test_each_newer_call_puts_the_run_off(burst: Burst) -> None:
    older, newer = burst.call(1), burst.call(2, at=4)
    assert due(newer) == at(called(newer) + QUIET)
    assert due(newer) > due(older) + 3


def test_a_burst_ends_at_most_so_long_after_its_first_call(burst: Burst) -> None:
    first = burst.call(1)
    newest = [burst.call(2, at=30), burst.call(3, at=58)][-1]
    assert due(newest) == at(called(first) + AT_MOST)


def test_a_burst_without_a_maximum_lasts_as_long_as_its_calls(bench: Bench) -> None:
    burst = Burst(bench, lock_debounce=QUIET)
    burst.call(1)
    newest = burst.call(2, at=3000)
    assert due(newest) == at(called(newest) + QUIET)


def test_a_call_after_the_end_of_a_burst_that_no_worker_began_is_due_at_once(burst: Burst) -> None:
    burst.call(1)
    newest = burst.call(2, at=AT_MOST + 10)
    assert due(newest) == at(called(newest))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("arrive", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_newest_call_alone_runs_in_whatever_order_the_messages_arrive(
    bench: Bench, mode: str, arrive: tuple[int, ...]
) -> None:
    burst = Burst(bench, lock_mode=mode)
    messages = [burst.call(number) for number in range(3)]
    for number in arrive:
        bench.run(messages[number])
    assert burst.runs == [2]


def test_a_call_after_the_body_has_begun_begins_another_burst(bench: Bench, burst: Burst) -> None:
    bench.run(burst.call(1))
    newer = burst.call(2, at=58)
    assert due(newer) == at(called(newer) + QUIET)
    bench.run(newer)
    assert burst.runs == [1, 2]


def test_a_call_from_the_body_begins_another_burst(bench: Bench) -> None:
    burst = Burst(bench)
    burst.task.run = lambda number: burst.runs.append(number) or burst.task.delay(number + 1)
    bench.run(burst.call(1))
    bench.run(bench.receive())
    assert burst.runs == [1, 2]


def test_a_lock_of_a_debounced_call_waits_for_lock_queue_ttl_from_when_it_is_due(
    bench: Bench,
) -> None:
    burst = Burst(bench, lock_debounce=500, lock_queue_ttl=100)
    burst.call(1)
    wait_until(lambda: left(bench) > 590, message="it was not lengthened")
    burst.call(2)
    wait_until(lambda: left(bench) > 590, message="it was not lengthened")
    assert left(bench) <= 600


def begin_when(burst: Burst, message: dict[str, Any], given: str) -> None:
    """Have a worker begin a message when the nodes are asked for a lock with this argument."""
    reserve = burst.client.reserve

    def begin(*args: Any, **options: Any) -> Any:
        if options.get(given) and not burst.runs:
            burst.bench.run(message)
        return reserve(*args, **options)

    burst.client.reserve = begin


def test_a_call_begins_a_burst_where_the_older_one_begins_before_it_is_replaced(
    bench: Bench, burst: Burst
) -> None:
    begin_when(burst, burst.call(1), "previous")
    newer = burst.call(2, at=AT_MOST - 1)
    assert burst.runs == [1]
    assert due(newer) == at(called(newer) + QUIET)
    assert holder(bench).burst_us / 1e6 == at(called(newer))


# A burst that has lasted for its maximum.


def test_a_call_waits_for_the_worker_that_is_about_to_begin_the_last_one_of_a_burst(
    burst: Burst,
) -> None:
    begin_when(burst, burst.call(1), "wait_for_owner")
    newer = burst.call(2, at=AT_MOST + 0.2)
    burst.bench.run(newer)
    assert burst.runs == [1, 2]
    assert due(newer) == at(called(newer) + QUIET)


def test_a_call_waits_for_it_no_longer_than_for_a_release(
    burst: Burst, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unique_publish, "RELEASE_WAIT", 0.05)
    last, newer = burst.call(1), burst.call(2, at=AT_MOST + 0.2)
    for message in (last, newer):
        burst.bench.run(message)
    assert burst.runs == [2]
    assert due(newer) == at(called(newer))


# Calls that have no lock, or whose publisher tries again.


def publish_without_quorum(burst: Burst) -> dict[str, Any]:
    before_next(burst.client, "reserve", raising(QuorumUnavailable("no quorum")))
    return burst.call(1)


def test_a_call_without_a_lock_gives_way_to_a_newer_one_that_waits(burst: Burst) -> None:
    older = publish_without_quorum(burst)
    newer = burst.call(2)
    wait_until(lambda: left(burst.bench) > PUBLISH_GRACE, message="it was not lengthened")
    states = [burst.bench.run(message).state for message in (older, newer)]
    assert states == ["IGNORED", "SUCCESS"]
    assert burst.runs == [2]


def test_a_call_without_a_lock_runs_where_no_newer_one_waits(burst: Burst) -> None:
    burst.bench.run(publish_without_quorum(burst))
    assert burst.runs == [1]


def assert_runs_after(burst: Burst, older: dict[str, Any], newest: dict[str, Any]) -> None:
    assert burst.bench.run(newest).state == "RETRY"
    burst.bench.run(older)
    burst.bench.run(burst.bench.receive())
    assert burst.runs == [0, 1]


def test_a_newest_call_without_a_lock_runs_after_an_older_one_that_waits(burst: Burst) -> None:
    older = burst.call(0, at=-1)
    assert_runs_after(burst, older, publish_without_quorum(burst))


def test_the_call_of_a_tick_that_was_due_long_ago_counts_from_when_it_was_made(
    burst: Burst,
) -> None:
    older = burst.call(0, at=-1)
    late = publish_without_quorum(burst)
    late[HEADER]["tick"] = tick_now(-600).write()
    assert_runs_after(burst, older, late)


def test_a_call_without_a_lock_waits_for_a_newer_one_whose_publisher_may_be_dead(
    burst: Burst,
) -> None:
    older = publish_without_quorum(burst)
    burst.client.confirm = lambda reserved: None
    burst.call(2)
    assert burst.bench.run(older).state == "RETRY"


def fail_after_sending(burst: Burst, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    """Send a call whose message the broker takes, and raise."""
    send = burst.bench.app.amqp.send_task_message

    def take_and_fail(*args: Any, **kwargs: Any) -> None:
        send(*args, **kwargs)
        raise OperationalError("no confirmation")

    with monkeypatch.context() as patch:
        patch.setattr(burst.bench.app.amqp, "send_task_message", take_and_fail)
        with pytest.raises(OperationalError):
            burst.task.apply_async((1,), **options)
    return burst.bench.receive()


@pytest.mark.parametrize("options", [{}, {"task_id": "mine"}])
def test_a_call_that_was_sent_though_it_raised_runs_once_when_it_is_made_again(
    burst: Burst, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    first = fail_after_sending(burst, monkeypatch, **options)
    again = burst.call(2, **options)
    wait_until(lambda: left(burst.bench) > PUBLISH_GRACE, message="it was not lengthened")
    for message in (first, again):
        burst.bench.run(message)
    assert burst.runs == [2]


def test_a_call_with_the_id_of_one_that_was_replaced_runs(
    bench: Bench, burst: Burst, revoked: list[str]
) -> None:
    messages = [burst.call(n, task_id=task_id) for n, task_id in enumerate(("x", "y", "x"))]
    for message in messages:
        bench.run(message)
    assert burst.runs == [2]
    assert revoked == []  # a worker would discard the third as well


@pytest.mark.parametrize("arrive", [(0, 1), (1, 0)])
def test_two_calls_with_one_id_run_once(
    bench: Bench, burst: Burst, arrive: tuple[int, int]
) -> None:
    messages = [burst.call(number, task_id="mine") for number in range(2)]
    for number in arrive:
        bench.run(messages[number])
    assert burst.runs == [1]


def test_an_older_call_with_the_same_id_says_nothing_about_the_task(
    bench: Bench, burst: Burst
) -> None:
    older, _ = burst.call(1, task_id="twice"), burst.call(2, task_id="twice")
    assert bench.run(older).state == "IGNORED"
    assert bench.app.AsyncResult("twice").state == "PENDING"


# What is no debounced call.


@pytest.fixture
def retrying(bench: Bench) -> Any:
    """A debounced task whose body asks for a retry."""
    options = {"bind": True, "lock_debounce": 50, "lock_key": "k"}
    return bench.task(lambda self: self.retry(countdown=2), **options)


def test_a_retry_runs_when_the_body_has_asked_for(bench: Bench, retrying: Any) -> None:
    bench.run(bench.send(retrying))
    again = bench.receive()
    assert due(again) < time.time() + 3
    assert Envelope.read(again).sent is None


def test_a_newer_call_replaces_a_retry_that_waits_and_begins_a_burst(
    bench: Bench, retrying: Any
) -> None:
    bench.run(bench.send(retrying))
    again, newer = bench.receive(), bench.send(retrying)
    assert due(newer) == at(called(newer) + 50)
    assert bench.run(again).state == "IGNORED"
    assert role(bench) is Role.QUEUED


def test_apply_runs_the_body_at_once(burst: Burst) -> None:
    burst.task.apply((1,))
    assert burst.runs == [1]


@pytest.mark.parametrize(
    "options",
    [{"countdown": 3}, {"eta": datetime.now(UTC) + timedelta(hours=1)}, {"expires": QUIET - 1}],
)
def test_a_call_with_a_time_of_its_own_is_refused_and_replaces_nothing(
    burst: Burst, options: dict[str, Any]
) -> None:
    burst.call(1)
    before = holder(burst.bench)
    with pytest.raises(ConfigurationError, match=f"job (takes no {next(iter(options))}|would ex)"):
        burst.task.apply_async((2,), **options)
    assert (holder(burst.bench), burst.bench.queue_length) == (before, 0)


def test_a_call_that_the_broker_does_not_take_leaves_the_older_one(
    bench: Bench, burst: Burst
) -> None:
    older = burst.call(1)
    break_broker(bench)
    with pytest.raises(OperationalError):
        burst.call(2)
    bench.run(older)
    assert burst.runs == [1]
