"""A message whose key is paused waits for the end of the pause, whatever its policies are."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from celery import states
from celery.exceptions import Ignore

from celery_redlock import Rate, observe, pause, resume
from celery_redlock.errors import LockNotAcquired
from celery_redlock.protocol.keys import pause_of
from celery_redlock.tasks.message.envelope import HEADER, Envelope
from celery_redlock.tasks.run.requeue import FIRST_DELAY
from tests.support.tasks import Bench
from tests.support.unique import KEY, declare, holder
from tests.unit.tasks.jobs import job, redelivered

PAUSE = pause_of(KEY)
LONG = 600.0


def eta_in(request: dict[str, Any]) -> float:
    """Return in how many seconds a message is due."""
    return datetime.fromisoformat(request["eta"]).timestamp() - time.time()


def test_a_function_for_conflicts_is_not_called(bench: Bench) -> None:
    asked: list[Any] = []
    bench.elsewhere.pause("k", LONG)
    bench.call(job(bench, lock_on_conflict=lambda task, conflict: asked.append(task) or "skip"))
    assert asked == []


def test_a_longer_pause_is_cut_by_the_visibility_timeout(bench: Bench) -> None:
    bench.app.conf.broker_transport_options = {"visibility_timeout": 100}
    bench.elsewhere.pause("k", LONG)
    bench.call(job(bench))
    assert eta_in(bench.receive()) <= 50


def test_it_comes_back_within_a_second_of_the_end_whatever_its_ttl(bench: Bench) -> None:
    bench.elsewhere.pause("k", LONG)
    bench.call(job(bench, lock_ttl=1))
    assert LONG - 10 < eta_in(bench.receive()) <= LONG + FIRST_DELAY


def test_it_waits_for_the_pause_and_the_key(bench: Bench) -> None:
    bench.elsewhere.pause("k", LONG)
    bench.call(job(bench))
    assert Envelope.read(bench.receive()).waits_for == (KEY, PAUSE)


def test_with_a_rate_it_waits_for_the_pause_alone(bench: Bench) -> None:
    bench.elsewhere.pause("k", LONG)
    bench.call(bench.task(lambda: None, lock_key="k", lock_rate="1/s"))
    assert Envelope.read(bench.receive()).waits_for == (PAUSE,)


def test_it_gives_up_when_its_time_is_over(bench: Bench) -> None:
    bench.elsewhere.pause("k", LONG)
    assert bench.call(job(bench, lock_give_up_after=60)).state == "RETRY"
    again = bench.receive()
    again[HEADER]["first_seen"] -= 60
    outcome = bench.run(again)
    assert isinstance(outcome.value, LockNotAcquired)
    assert "is paused for" in str(outcome.value)


def test_it_does_not_keep_its_process_for_a_long_pause(bench: Bench) -> None:
    attempts: list[int] = []
    bench.elsewhere.pause("k", LONG)
    request = bench.send(bench.task(lambda: None, lock_key="k"))
    forget = observe(lambda details: attempts.append(getattr(details, "attempts", 0)))
    bench.run(request)
    forget()
    assert attempts == [2]  # the second one registers it


def test_a_call_is_sent_with_its_lock_while_the_key_is_paused(bench: Bench, mode: str) -> None:
    task = declare(bench, lock_mode=mode)
    bench.elsewhere.pause("k", LONG)
    assert Envelope.read(bench.send(task)).reservation is not None


def test_a_duplicate_is_still_found(bench: Bench, mode: str) -> None:
    task = declare(bench, lock_mode=mode)
    bench.elsewhere.pause("k", LONG)
    first = task.delay()
    assert task.delay().id == first.id
    assert bench.queue_length == 1


def test_a_message_with_a_lock_waits_and_keeps_it(bench: Bench, mode: str) -> None:
    task = declare(bench, lock_mode=mode)
    bench.elsewhere.pause("k", LONG)
    request = bench.send(task)
    brought = Envelope.read(request).reservation
    assert bench.run(request).state == "RETRY"
    assert Envelope.read(bench.receive()).reservation.owner == brought.owner


def test_a_message_with_a_lock_waits_for_nothing_that_it_has(bench: Bench, mode: str) -> None:
    task = declare(bench, lock_mode=mode)
    bench.elsewhere.pause("k", LONG)
    bench.run(bench.send(task))
    envelope = Envelope.read(bench.receive())
    assert PAUSE in envelope.waits_for
    assert not set(envelope.waits_for).intersection(envelope.reservation.node_keys)


def test_a_redelivery_is_still_recognised(bench: Bench) -> None:
    request = bench.send(declare(bench))
    bench.run(request)
    bench.elsewhere.pause("k", LONG)
    assert isinstance(bench.run(redelivered(request)).value, Ignore)


def test_a_retry_of_a_running_body_waits(bench: Bench) -> None:
    def body(self: Any) -> None:
        bench.elsewhere.pause("k", LONG)
        raise self.retry(countdown=0)

    task = declare(bench, body)
    assert bench.call(task).state == states.RETRY
    retried = bench.receive()
    assert bench.run(retried).state == "RETRY"
    assert holder(bench) is not None


def test_a_rate_that_is_taken_at_publish_sends_without_it(bench: Bench) -> None:
    task = declare(bench, lock_key=["k", Rate("api", 5, 60)], lock_on_duplicate="raise")
    bench.elsewhere.pause("api", LONG)
    assert Envelope.read(bench.send(task)).reservation is None


def test_an_app_pauses_and_resumes(bench: Bench) -> None:
    assert pause("k", 60, app=bench.app) == {}
    assert bench.call(job(bench)).state == "RETRY"
    assert resume("k", app=bench.app)
    assert bench.run(bench.receive()).state == "SUCCESS"


def test_the_current_app_is_the_default(bench: Bench) -> None:
    bench.app.set_current()
    pause("k", 60)
    assert resume("k", app=bench.app)
