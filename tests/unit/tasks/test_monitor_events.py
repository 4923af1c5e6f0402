"""What Celery's monitors receive of a task's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Semaphore
from types import SimpleNamespace
from typing import Any

import pytest
from celery.app.task import Context

from celery_redlock import LossReason, current_lease
from celery_redlock.tasks import events
from celery_redlock.tasks.events import MOST_WAITING, MonitorEvent, send_monitor_event
from tests.support.tasks import Bench
from tests.support.waiting import wait_until
from tests.unit.tasks.jobs import job, raising

REQUEST = Context(id="mine", hostname="worker@bench", is_eager=False)


@pytest.fixture(autouse=True)
def own_outbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the events of each test in a thread of its own, whatever earlier ones left to send."""
    monkeypatch.setattr(events, "_outbox", None)


def test_a_task_that_is_requeued_sends_its_holder_and_its_delay(bench: Bench) -> None:
    sent = bench.watch_monitor_events()
    holder = bench.elsewhere.acquire("k", ttl=60)
    outcome = bench.call(job(bench))
    ((kind, fields),) = wait_until(lambda: sent)
    assert kind == "redlock-waiting"
    assert (fields["key"], fields["holder"]) == ("k", holder.owner)
    assert fields["delay"] == outcome.value.when


def test_a_loss_sends_its_reason_with_the_id_of_the_task(bench: Bench) -> None:
    sent = bench.watch_monitor_events()

    def lose(self: Any) -> None:
        current_lease().mark_lost(LossReason.REPORTED)
        wait_until(lambda: len(sent) == 2)

    request = bench.send(job(bench, lose, lock_on_lost="flag"))
    bench.run(request)
    kind, fields = sent[1]
    assert (kind, fields["uuid"]) == ("redlock-lost", request["id"])
    assert fields["reason"] == LossReason.REPORTED


def test_nothing_is_sent_where_tasks_are_eager(bench: Bench) -> None:
    sent = bench.watch_monitor_events()
    task = job(bench)
    bench.app.conf.task_always_eager = True
    task.delay()

    bench.app.conf.task_always_eager = False
    request = bench.send(task)
    bench.run(request)
    ((_, fields),) = wait_until(lambda: sent)
    assert fields["uuid"] == request["id"]


def job_whose_events_go_through(bench: Bench, send: Callable[[str], object]) -> Any:
    """Declare a task in a worker that sends the events of a kind by this call."""

    @contextmanager
    def dispatcher(**_: Any) -> Iterator[Any]:
        yield SimpleNamespace(send=lambda kind, **_: send(kind))

    bench.watch_monitor_events()
    bench.app.events.default_dispatcher = dispatcher
    return job(bench)


def test_a_broker_that_takes_no_event_does_not_change_the_outcome(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    task = job_whose_events_go_through(bench, raising(OSError("no broker")))
    assert bench.call(task).value == "ran"
    wait_until(lambda: "The event redlock-locked of task job[" in caplog.text)


def test_a_broker_that_does_not_reply_holds_up_no_body(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    replies = Event()
    task = job_whose_events_go_through(bench, lambda _: replies.wait())
    try:
        assert bench.call(task).value == "ran"
        for _ in range(MOST_WAITING + 2):
            send_monitor_event(MonitorEvent.LOCKED, task, REQUEST)
        assert caplog.text.count("further ones are dropped") == 1
    finally:
        replies.set()


def test_events_that_come_faster_than_they_are_sent_are_logged_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    turns = Semaphore(0)
    sent: list[str] = []

    def send(kind: str) -> None:
        turns.acquire()
        sent.append(kind)

    task = job_whose_events_go_through(bench, send)
    try:
        for _ in range(MOST_WAITING + 2):
            send_monitor_event(MonitorEvent.LOCKED, task, REQUEST)
        for turn in range(5):
            turns.release()
            wait_until(lambda turn=turn: len(sent) > turn)
            for _ in range(2):
                send_monitor_event(MonitorEvent.LOCKED, task, REQUEST)
        assert caplog.text.count("further ones are dropped") == 1
    finally:
        turns.release(2 * MOST_WAITING)
