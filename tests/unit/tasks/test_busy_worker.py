"""A message that a busy worker keeps returns to its queue as it was, or stays where it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker.request import Request
from kombu import Exchange, Message, Queue

from celery_redlock.tasks import busy_worker
from celery_redlock.tasks.busy_worker import MOST_RETURNS, BusyWorker, worker_state
from celery_redlock.tasks.message.envelope import HEADER, Envelope, WaitHistory
from tests.support.tasks import Bench


class Consumer:
    """The consumer of a worker with one process, which has a body to run."""

    def __init__(self, bench: Bench) -> None:
        self.app = bench.app
        self.bench = bench
        self.pool = SimpleNamespace(num_processes=1, limit=1)
        self.controller = SimpleNamespace(max_concurrency=None)
        queue = Queue(bench.app.conf.task_default_queue)
        self.task_consumer = SimpleNamespace(queues=[queue])
        self.qos = SimpleNamespace(decrement_eventually=lambda: self.calls.append("fetch one more"))
        self.calls: list[str] = []
        self.timers: list[Callable[[], None]] = []
        self.timer = SimpleNamespace(call_after=lambda _, call: self.timers.append(call))
        self.returns = BusyWorker(self).returns

    def keep(self, task: Any, *args: Any, **options: Any) -> Request:
        """Send a message with an ETA, and keep it."""
        task.apply_async(args, countdown=60, **options)
        return Request(
            self.bench.take(),
            app=self.app,
            task=task,
            on_ack=lambda *_: self.calls.append(f"ack, sent: {self.bench.queue_length}"),
        )


@pytest.fixture
def worker(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Consumer:
    monkeypatch.setattr(worker_state, "reserved_requests", {"a body"})
    return Consumer(bench)


@pytest.fixture
def task(bench: Bench) -> Any:
    return bench.task(lambda *_, **__: "ran", lock_key="k")


@pytest.mark.parametrize(
    "options",
    [
        {"kwargs": {"size": 2}, "priority": 3, "time_limit": 9, "shadow": "x"},
        {"headers": {"redlock": {"nonce": "n", "waits_for": ["redlock:k"]}, "of a user": "kept"}},
        {"retries": 2, "root_id": "root", "parent_id": "parent", "ignore_result": True},
    ],
    ids=["options", "headers", "a retry"],
)
def test_it_is_the_same_message(
    worker: Consumer, task: Any, bench: Bench, options: dict[str, Any]
) -> None:
    kept = worker.keep(task, "an argument", link=task.si("then"), **options)
    assert worker.returns(kept)
    before, after = kept.message, bench.take()
    assert after.payload == before.payload
    assert same_headers(after) == same_headers(before)
    assert replace(Envelope.read(after.headers), returns=0) == Envelope.read(before.headers)
    for name in ("priority", "correlation_id", "delivery_mode"):
        assert after.properties.get(name) == before.properties.get(name)


def same_headers(message: Message) -> dict[str, Any]:
    """Return the headers other than its sender and the time when it may start."""
    varies = {HEADER, "eta", "argsrepr", "kwargsrepr", "origin"}
    return {name: value for name, value in message.headers.items() if name not in varies}


def test_busy_workers_return_it_a_few_times_and_then_it_is_as_any_other(
    worker: Consumer, task: Any, bench: Bench
) -> None:
    kept = worker.keep(task)
    etas = []
    for _ in range(MOST_RETURNS):
        assert worker.returns(kept)
        message = bench.take()
        etas.append(message.headers["eta"])
        kept = Request(message, app=bench.app, task=task)
    assert all(etas[:-1])
    assert etas[-1] is None


def test_a_requeue_begins_to_count_anew() -> None:
    history = WaitHistory(first_seen=1.0, requeues=1, retries=0)
    assert Envelope(returns=3).waiting(history, begun=False).returns == 0


def test_it_is_sent_before_it_is_acknowledged(worker: Consumer, task: Any) -> None:
    kept = worker.keep(task)
    assert worker.returns(kept)
    assert worker.calls == ["ack, sent: 1", "fetch one more"]


def test_the_worker_forgets_it(worker: Consumer, task: Any) -> None:
    kept = worker.keep(task)
    worker_state.requests[kept.id] = kept
    assert worker.returns(kept)
    assert kept.id not in worker_state.requests


def test_an_empty_queue_is_none_on_some_brokers(worker: Consumer, task: Any, bench: Bench) -> None:
    kept = worker.keep(task)
    with bench.app.connection_for_write() as connection:
        connection.default_channel.queue_delete(bench.app.conf.task_default_queue)
    assert worker.returns(kept)


def free_a_process(worker: Consumer, _: Request) -> None:
    worker.pool.num_processes = 2


def have_a_thread_free(worker: Consumer, _: Request) -> None:
    worker.pool.limit = 2


def be_autoscaled(worker: Consumer, _: Request) -> None:
    worker.controller.max_concurrency = 2


def expire_later(_: Consumer, request: Request) -> None:
    request._expires = request.eta


def come_from_a_broadcast(worker: Consumer, request: Request) -> None:
    queue = Queue("own", exchange=Exchange("all", type="fanout"), routing_key="all")
    worker.task_consumer.queues = [queue]
    request.delivery_info.update(exchange="all", routing_key="all")


def be_delivered_again(_: Consumer, request: Request) -> None:
    request.delivery_info["redelivered"] = True


def stop_reading(worker: Consumer, _: Request) -> None:
    worker.task_consumer.queues = [Queue("another")]


def fill_the_queue(worker: Consumer, request: Request) -> None:
    for _ in range(2):
        request.task.apply_async()


def revoke(_: Consumer, request: Request) -> None:
    worker_state.revoked.add(request.id)


@pytest.mark.parametrize(
    "change",
    [
        free_a_process,
        have_a_thread_free,
        be_autoscaled,
        be_delivered_again,
        expire_later,
        stop_reading,
        come_from_a_broadcast,
        fill_the_queue,
        revoke,
    ],
)
def test_it_stays_where_another_worker_would_gain_nothing(
    worker: Consumer, task: Any, change: Callable[[Consumer, Request], None]
) -> None:
    kept = worker.keep(task)
    change(worker, kept)
    before = worker.bench.queue_length
    assert not worker.returns(kept)
    assert worker.bench.queue_length == before
    assert worker.calls == []


@pytest.mark.parametrize("fails", ["_length", "send_again"])
def test_it_stays_where_the_broker_does_not_answer(
    worker: Consumer, task: Any, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def fail(*_: Any) -> None:
        raise ConnectionError("gone")

    kept = worker.keep(task)
    with monkeypatch.context() as patched:
        patched.setattr(busy_worker, fails, fail)
        assert not worker.returns(kept)
    assert worker.calls == []
    assert not worker.returns(kept)  # it does not ask again soon
    later = time.monotonic() + 60.0
    monkeypatch.setattr(busy_worker.time, "monotonic", lambda: later)
    assert worker.returns(kept)


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The connections over which the length of a queue was asked."""
    used: list[Any] = []
    length = busy_worker._length

    def noted(connection: Any, queue: str) -> int:
        used.append(connection)
        return length(connection, queue)

    monkeypatch.setattr(busy_worker, "_length", noted)
    return used


def test_messages_that_are_due_at_once_share_a_connection(
    worker: Consumer, task: Any, connections: list[Any]
) -> None:
    kept = [worker.keep(task), worker.keep(task)]
    assert all(map(worker.returns, kept))
    assert connections[0] is connections[1]
    assert len(worker.timers) == 1


def test_their_connection_is_closed_after_a_moment(
    worker: Consumer, task: Any, connections: list[Any]
) -> None:
    kept = [worker.keep(task), worker.keep(task)]
    assert worker.returns(kept[0])
    worker.timers[0]()
    assert worker.returns(kept[1])
    assert [connection.connected for connection in connections] == [False, True]


def test_messages_that_return_at_the_same_time_share_none(
    worker: Consumer, task: Any, connections: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [worker.keep(task), worker.keep(task)]
    length = busy_worker._length

    def let_the_other_return(connection: Any, queue: str) -> int:
        monkeypatch.setattr(busy_worker, "_length", length)
        assert worker.returns(kept[1])  # in another greenlet, which runs while this one waits
        return length(connection, queue)

    monkeypatch.setattr(busy_worker, "_length", let_the_other_return)
    assert worker.returns(kept[0])
    assert len({id(connection) for connection in connections}) == 2


def test_a_connection_that_has_failed_is_not_used_again(
    worker: Consumer, task: Any, connections: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = worker.keep(task)
    with monkeypatch.context() as patched:
        patched.setattr(busy_worker, "send_again", lambda *_, **__: 1 / 0)
        assert not worker.returns(kept)
    later = time.monotonic() + 60.0
    monkeypatch.setattr(busy_worker.time, "monotonic", lambda: later)
    assert worker.returns(kept)
    assert [connection.connected for connection in connections] == [False, True]


def test_it_returns_to_its_own_queue_only(worker: Consumer, task: Any, bench: Bench) -> None:
    exchange = Exchange("ours", type="direct")
    name = bench.app.conf.task_default_queue
    worker.task_consumer.queues = [Queue(name, exchange=exchange, routing_key="ours")]
    kept = worker.keep(task)
    kept.delivery_info.update(exchange="ours", routing_key="ours")
    assert worker.returns(kept)
    assert bench.queue_length == 1
