"""Task bodies run in this process, by the tracer that a worker would use, on an in-memory node."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from celery import Celery
from celery.app.trace import build_tracer
from kombu import Message

from celery_redlock import Redlock, RedlockTask
from celery_redlock.core.watchdog import process_watchdog
from celery_redlock.tasks.config.client import close_clients
from celery_redlock.tasks.run.shown_end import Requeued
from celery_redlock.transport import clock, parse_nodes
from celery_redlock.transport.memory import MemoryNode, Time, memory_node

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended: Celery's state, RETRY if it was requeued; the result or the exception."""

    state: str
    value: Any


class MovableTime(Time):
    """
    The machine's time, and what a test has let pass at once.

    Attributes:
        passed: the seconds that have not really passed.
    """

    passed = 0.0

    def now(self) -> float:
        return clock.now() + self.passed

    def wall_us(self) -> int:
        return clock.wall_us() + round(self.passed * 1_000_000)


class Bench:
    """
    An app with one lock node of its own, whose messages can be run and looked at.

    Attributes:
        time: the clock of the node and its clients, with which they measure leases.
    """

    def __init__(self, *, time: Time | None = None, **conf: Any) -> None:
        name = f"bench-{next(_numbers)}"
        self.app = Celery(name, broker="memory://", backend="cache+memory://", set_as_current=False)
        self.node_url = f"memory://{name}"
        self.app.conf.update(
            redlock_nodes=[self.node_url],
            task_default_queue=name,
            # The results of all apps of a process are in one place.
            result_backend_transport_options={"global_keyprefix": name},
        )
        self.app.conf.update(conf)
        # Clients take their clock from the node when they are made.
        self.time = self.node.time = time or MovableTime()
        self.elsewhere = Redlock(self.node_url)

    def task(self, body: Callable[..., Any], **options: Any) -> Any:
        """Declare a task, of a lambda too; one of ours unless `base` says otherwise."""
        body.__name__ = "body"
        options = {"base": RedlockTask, "name": "job", **options}
        return self.app.task(shared=False, **options)(body)

    @property
    def node(self) -> MemoryNode:
        (address,) = parse_nodes(self.node_url)
        return memory_node(address)

    def let_pass(self, seconds: float) -> None:
        """Let this time pass at once, and have the watchdog do what is due by then."""
        self.time.passed += seconds
        if (thread := process_watchdog()._thread) is not None:
            thread.wakeup.wake()

    def is_held(self, key: str) -> bool:
        return f"redlock:{key}" in self.node.state.keys

    def send(self, task: Any, *args: Any, **options: Any) -> dict[str, Any]:
        """Publish a task, and take its message out of the queue again as a worker does."""
        task.apply_async(args, **options)
        return self.receive()

    def receive(self) -> dict[str, Any]:
        """Take the next message out of the queue, as the request that a worker makes of it."""
        message = self.take()
        args, kwargs, embed = message.payload
        info = message.delivery_info
        return {
            **message.headers,
            **embed,
            "args": args,
            "kwargs": kwargs,
            "hostname": "worker@bench",
            "is_eager": False,
            "properties": {**message.properties, "content_type": message.content_type},
            "delivery_info": {
                "exchange": info.get("exchange"),
                "routing_key": info.get("routing_key"),
                "priority": message.properties.get("priority"),
                "redelivered": False,
            },
        }

    def take(self) -> Message:
        """Take the next message out of the queue."""
        with self.app.connection_for_read() as connection:
            queue = connection.SimpleQueue(self.app.conf.task_default_queue)
            message = queue.get(block=False)
            message.ack()
            queue.close()
        return message

    @property
    def queue_length(self) -> int:
        with self.app.connection_for_read() as connection:
            return int(connection.SimpleQueue(self.app.conf.task_default_queue).qsize())

    def run(self, request: dict[str, Any], **changes: Any) -> Outcome:
        """Run a request as a pool process does."""
        request = {**request, **changes}
        task = self.app.tasks[request["task"]]
        trace = build_tracer(task.name, task, app=self.app)
        traced = trace(request["id"], request["args"], request["kwargs"], request)
        if traced.info is None:
            return Outcome(state="SUCCESS", value=self.app.AsyncResult(request["id"]).result)
        requeued = isinstance(traced.info.retval, Requeued)
        return Outcome(state="RETRY" if requeued else traced.info.state, value=traced.info.retval)

    def call(self, task: Any, *args: Any, **options: Any) -> Outcome:
        """Publish a task and run it."""
        return self.run(self.send(task, *args, **options))

    def watch_monitor_events(self) -> list[tuple[str, dict[str, Any]]]:
        """Send task events as a worker with `--task-events`, to the list that is returned."""
        sent: list[tuple[str, dict[str, Any]]] = []

        @contextmanager
        def dispatcher(hostname: str) -> Iterator[Any]:
            def send(kind: str, **fields: Any) -> None:
                sent.append((kind, {**fields, "hostname": hostname}))

            yield SimpleNamespace(send=send)

        self.app.conf.worker_send_task_events = True
        self.app.events.default_dispatcher = dispatcher
        return sent

    def close(self) -> None:
        self.elsewhere.close()
        close_clients()
        self.app.close()
