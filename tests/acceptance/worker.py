"""Real worker processes: started, watched through their log, and ended by pid."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from celery import Celery, Signature
from celery.result import AsyncResult

from tests.support.waiting import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[2]
LOG_TAIL_LINES = 80
CELERY = (sys.executable, "-m", "celery", "--quiet", "-A", "tests.acceptance.apps.stage")

_numbers = itertools.count(1)


class Worker:
    """
    One `celery worker` process with a queue of its own and a client that publishes to it.

    The client is a bare Celery app that sends by task name: what publishes needs nothing of ours.
    """

    def __init__(
        self,
        *,
        pool: str,
        urls: dict[str, str],
        conf: dict[str, Any],
        logs: Path,
        declare: dict[str, Any] | None = None,
    ) -> None:
        self.pool = pool
        self.name = f"{pool}-{next(_numbers)}"
        self.nodename = f"{self.name}@acceptance"
        self._log = logs / f"{self.name}.log"
        self.app = Celery(
            self.name, broker=urls["broker"], backend=urls["backend"], set_as_current=False
        )
        self.app.conf.task_default_queue = self.name
        stage = {
            "urls": urls,
            "conf": {"task_default_queue": self.name, **conf},
            "declare": declare or {},
        }
        self._environment = {**os.environ, "ACCEPTANCE_STAGE": json.dumps(stage)}
        command = [
            *(*CELERY, "worker", f"--pool={pool}"),
            f"--concurrency={1 if pool == 'solo' else 4}",
            *("--loglevel=INFO", f"--hostname={self.nodename}"),
            *("--without-mingle", "--without-gossip", "--without-heartbeat"),
        ]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def log_tail(self) -> str:
        return "\n".join(self.log.splitlines()[-LOG_TAIL_LINES:])

    def wait_until_ready(self) -> Worker:
        def ready() -> bool:
            if not self.is_running:
                raise AssertionError(
                    f"{self.name} ended with {self.process.returncode}:\n{self.log_tail}"
                )
            return f"{self.nodename} ready." in self.log

        wait_until(ready, message=lambda: f"{self.name} to be ready:\n{self.log_tail}")
        return self

    def wait_for_log(self, text: str) -> None:
        wait_until(
            lambda: text in self.log,
            message=lambda: f"{text!r} in the log of {self.name}:\n{self.log_tail}",
        )

    def wait_for_exit(self) -> int:
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not end:\n{self.log_tail}") from None

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

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
            timeout=PATIENCE,
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
            unsettled = sum(self.name in entry.decode() for entry in client.hvals("unacked"))
        return waiting == 0 and unsettled == 0

    @property
    def _has_nothing_to_do(self) -> bool:
        # RabbitMQ does not tell a client what it has delivered; the worker tells what it has got.
        inspect = self.app.control.inspect([self.nodename])
        told = [inspect.reserved(), inspect.scheduled(), inspect.active()]
        return all(answer is not None and not answer[self.nodename] for answer in told)

    def stop(self) -> None:
        """End the process, kindly first; its pool children follow it (PDEATHSIG) in any case."""
        for number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGKILL):
            if not self.is_running:
                break
            self.process.send_signal(number)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                continue
