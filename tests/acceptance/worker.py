"""Real worker processes: started, watched through their log, and ended by pid."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from celery import Celery, Signature
from celery.result import AsyncResult

from tests.acceptance.program import ROOT, Program, stop_all
from tests.support.waiting import TIMEOUT, wait_until

APPS = "tests.acceptance.apps"
CELERY = (sys.executable, "-m", "celery", "--quiet", "-A", f"{APPS}.stage")
SKEWED = (sys.executable, "-m", f"{APPS}.skewed", *CELERY[3:])

_numbers = itertools.count(1)


class Worker(Program):
    """
    One `celery worker` process with a queue of its own and a client that publishes to it.

    The client is a bare Celery app that sends by task name: what publishes needs nothing of ours.

    Args:
        options: more words for the command line.
        skew: seconds by which its wall clock is ahead.
        more: what else its modules find in the stage.
    """

    def __init__(
        self,
        *,
        pool: str,
        urls: dict[str, str],
        conf: dict[str, Any],
        logs: Path,
        declare: dict[str, Any] | None = None,
        options: Sequence[str] = (),
        skew: float = 0.0,
        **more: Any,
    ) -> None:
        self.pool = pool
        name = f"{pool}-{next(_numbers)}"
        self.nodename = f"{name}@acceptance"
        self.app = Celery(
            name, broker=urls["broker"], backend=urls["backend"], set_as_current=False
        )
        self.app.conf.task_default_queue = name
        stage = {
            "urls": urls,
            "conf": {"task_default_queue": name, **conf},
            "declare": declare or {},
            "skew": skew,
            **more,
        }
        self._environment = {**os.environ, "ACCEPTANCE_STAGE": json.dumps(stage)}
        command = [
            *(*(SKEWED if skew else CELERY), "worker", f"--pool={pool}"),
            f"--concurrency={1 if pool == 'solo' else 4}",
            *("--loglevel=INFO", f"--hostname={self.nodename}"),
            *("--without-mingle", "--without-gossip", "--without-heartbeat"),
            *options,
        ]
        super().__init__(name, command, self._environment, logs)

    def wait_until_ready(self) -> Self:
        self.wait_for_log(f"{self.nodename} ready.")
        if self.pool in {"gevent", "eventlet"}:
            # They begin to listen for remote control later, and what is asked before is lost.
            wait_until(
                lambda: self._asked(lambda inspect: inspect.ping()),
                message=lambda: f"an answer of {self.name}:\n{self.log_tail}",
            )
        return self

    def _asked(self, question: Callable[[Any], Any]) -> Any:
        """Return what the worker answers; nothing if it does not."""
        answers = question(self.app.control.inspect([self.nodename], limit=1, timeout=1.0))
        return (answers or {}).get(self.nodename)

    @property
    def bodies(self) -> list[dict[str, Any]] | None:
        """The bodies that the main process knows to run; `None` if it does not answer."""
        return self._asked(lambda inspect: inspect.active())

    def signal(self, number: signal.Signals) -> None:
        if number == signal.SIGQUIT and self.pool != "solo":
            # Celery's cold shutdown ends the bodies of which the main process knows, and waits for
            # others; a body may begin before that. And under gevent and eventlet a handler would
            # end with the body that it interrupts, but a worker that answers is not in a body.
            wait_until(
                lambda: self.bodies,
                message=lambda: f"{self.name} to know of a body:\n{self.log_tail}",
            )
        super().signal(number)

    def send(self, task: str, *args: Any, **options: Any) -> AsyncResult:
        return self.app.send_task(task, args=args, **options)

    def step(self, task: str, *args: Any, **options: Any) -> Signature:
        """A signature for a canvas that runs on this worker."""
        return self.app.signature(task, args=args, **options)

    def revoke(self, result: AsyncResult) -> None:
        self.app.control.revoke(result.id, terminate=True, destination=[self.nodename])

    def command(self, name: str) -> str:
        """Run another `celery` command with this worker's app and return what it prints."""
        return subprocess.run(
            [*CELERY, name],
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=TIMEOUT,
        ).stdout

    @property
    def queue_is_empty(self) -> bool:
        """Whether the broker holds no message for this worker, delivered and unsettled included."""
        with self.app.connection_for_read() as connection:
            if connection.transport.driver_type == "amqp":
                queue = connection.default_channel.queue_declare(self.name, passive=True)
                return queue.message_count == 0 and self._has_nothing_to_do
            client = connection.default_channel.client
            waiting = client.llen(self.name)
            routing_keys = [json.loads(entry)[2] for entry in client.hvals("unacked")]
        return waiting == 0 and self.name not in routing_keys

    @property
    def _has_nothing_to_do(self) -> bool:
        # RabbitMQ does not tell a client what it has delivered; the worker tells what it has got.
        inspect = self.app.control.inspect([self.nodename])
        told = [inspect.reserved(), inspect.scheduled(), inspect.active()]
        return all(answer is not None and not answer[self.nodename] for answer in told)


@contextmanager
def kept_workers() -> Iterator[dict[str, Worker]]:
    """Give a place for workers that several tests use, by pool, and stop them in the end."""
    workers: dict[str, Worker] = {}
    yield workers
    stop_all(workers.values())
