"""What Celery's monitors show of a real worker's tasks and their locks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from celery import Celery
from celery.events.state import State

from celery_redlock import Lease
from tests.acceptance.conftest import KeepWorker, StartWorker
from tests.acceptance.scene import Journal, Lock
from tests.support.waiting import TIMEOUT, wait_until


@contextmanager
def monitored(app: Celery) -> Iterator[tuple[State, list[dict[str, Any]]]]:
    """Receive events as a monitor does; give its state and the events so far."""
    state, seen = State(), []
    listens = threading.Event()

    def note(event: dict[str, Any]) -> None:
        state.event(event)
        seen.append(event)

    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": note})

        def run() -> None:
            with receiver.consumer_context() as (receiving, *_):
                while not receiver.should_stop:
                    with suppress(TimeoutError):
                        receiving.drain_events(timeout=0.1)
                    listens.set()  # kombu subscribes when it first waits

        thread = threading.Thread(target=run)
        thread.start()
        try:
            assert listens.wait(TIMEOUT)
            yield state, seen
        finally:
            receiver.should_stop = True
            thread.join()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_monitor_shows_a_task_that_waits_and_then_runs_under_its_lock_as_celery_names_it(
    keep_worker: KeepWorker, pool: str, key: str, holder: Lease, journal: Journal
) -> None:
    worker = keep_worker(pool, options=("--task-events",))
    with monitored(worker.app) as (state, seen):
        result = worker.send("hold", key)

        def is_shown_as(name: str) -> bool:
            return result.id in state.tasks and state.tasks[result.id].state == name

        # As after a retry of Celery's, it may be shown as received again at once.
        wait_until(
            lambda: ("task-retried", result.id) in [(e["type"], e.get("uuid")) for e in seen]
        )
        holder.release()
        entered = journal.wait_for("entered")
        wait_until(lambda: any(event["type"] == "redlock-locked" for event in seen))
        wait_until(lambda: is_shown_as("STARTED"))
        journal.open()
        result.get(timeout=TIMEOUT)
        wait_until(lambda: is_shown_as("SUCCESS"))
    (locked,) = [event for event in seen if event["type"] == "redlock-locked"]
    assert (locked["key"], locked["fencing_token"]) == (key, entered["token"])
    assert locked["hostname"] == worker.nodename


def test_a_monitor_shows_a_loss(
    keep_worker: KeepWorker, key: str, lock: Lock, journal: Journal
) -> None:
    worker = keep_worker("prefork", options=("--task-events",))
    with monitored(worker.app) as (_, seen):
        result = worker.send("hold_shortly", key)
        journal.wait_for("entered")
        lock.take_away()
        wait_until(lambda: any(event["type"] == "redlock-lost" for event in seen))
        journal.open()
    (lost,) = [event for event in seen if event["type"] == "redlock-lost"]
    assert (lost["uuid"], lost["key"]) == (result.id, key)


@pytest.mark.parametrize("option", [(), ("--task-events",)], ids=["off", "on"])
def test_events_are_sent_where_the_worker_was_started_with_them(
    start_worker: StartWorker, key: str, journal: Journal, option: tuple[str, ...]
) -> None:
    # One process, which sends its events one after the other.
    worker = start_worker(options=("--concurrency=1", *option)).wait_until_ready()
    journal.open()
    with monitored(worker.app) as (_, seen):

        def locked() -> list[str]:
            return [event["uuid"] for event in seen if event["type"] == "redlock-locked"]

        first = worker.send("hold", key)
        first.get(timeout=TIMEOUT)
        worker.send("send_events").get(timeout=TIMEOUT)
        last = worker.send("hold", key)
        wait_until(lambda: last.id in locked())
    assert locked() == [*([first.id] if option else []), last.id]
