"""What the scenes do with a setup: send tasks, find out who runs them, and steer the next ones."""

from __future__ import annotations

from typing import Any

from celery.result import AsyncResult

from celery_redlock.testing.containers import RedlockTestWorker
from tests.acceptance.scene import Journal
from tests.support.waiting import TIMEOUT, wait_until

# Many times what it takes on an idle machine: a TTL, some trips through the queue, a reconnection.
SCENE_TIMEOUT = 3 * TIMEOUT
QUEUE = "celery"
# For one reply of a worker on a busy machine; asked again until it comes.
REPLY_TIMEOUT = 2.0


def second_entry(journal: Journal) -> dict[str, Any]:
    """Return what the second body that entered wrote, once it has."""
    return wait_until(
        lambda: journal.of("entered")[1:],
        SCENE_TIMEOUT,
        message=lambda: f"a second body in {journal.entries}",
    )[0]


class Stage:
    """A setup of pytest-celery, and the key that the test's tasks work on."""

    def __init__(self, setup: Any, key: str) -> None:
        self.setup = setup
        self.app = setup.app
        self.key = key

    def send(self, task: str, *args: Any) -> AsyncResult:
        """Send a task that works on the test's key."""
        return self.app.send_task(task, (self.key, *args))

    def worker_of(self, entry: dict[str, Any]) -> RedlockTestWorker:
        """Return the worker whose body wrote an entry into the journal."""
        (worker,) = (w for w in self.setup.worker_cluster if w.hostname() == entry["host"])
        return worker

    def other_than(self, worker: RedlockTestWorker) -> RedlockTestWorker:
        """Return the other of the two workers."""
        (other,) = (w for w in self.setup.worker_cluster if w is not worker)
        return other

    def send_to_nobody_but(self, worker: RedlockTestWorker) -> None:
        """Let only this worker take what is sent from now on."""
        self._ask("add_consumer", worker)
        self._ask("cancel_consumer", self.other_than(worker))

    def _ask(self, command: str, worker: RedlockTestWorker) -> None:
        wait_until(
            lambda: getattr(self.app.control, command)(
                QUEUE, destination=[worker.hostname()], reply=True, timeout=REPLY_TIMEOUT
            ),
            message=lambda: f"{worker.hostname()} to answer {command}:\n{worker.logs()}",
        )

    @property
    def workers_answering(self) -> int:
        """How many workers the broker reaches now, asked through a connection of its own."""
        with self.app.connection_for_write() as connection:
            return len(self.app.control.ping(connection=connection, timeout=REPLY_TIMEOUT))

    @property
    def all_is_done(self) -> bool:
        """Whether neither the broker nor a worker has a message left."""
        with self.app.connection_for_write() as connection:
            if connection.default_channel.queue_declare(QUEUE, passive=True).message_count:
                return False
            inspect = self.app.control.inspect(connection=connection, timeout=REPLY_TIMEOUT)
            told = [inspect.reserved(), inspect.scheduled(), inspect.active()]
        workers = [worker.hostname() for worker in self.setup.worker_cluster]
        return all(answer and not any(map(answer.get, workers)) for answer in told)
