"""An app in the test's process that has loaded the tasks, as a web server would have."""

from __future__ import annotations

from typing import Any

from celery import Celery, Signature
from celery.result import AsyncResult

from tests.acceptance.apps.unique_tasks import declare


class Publisher:
    """What a process uses that sends tasks to one worker's queue."""

    def __init__(self, *, urls: dict[str, str], conf: dict[str, Any], queue: str) -> None:
        self.app = Celery(
            "publisher", broker=urls["broker"], backend=urls["backend"], set_as_current=False
        )
        self.app.conf.update(
            {name: value for name, value in conf.items() if name != "include"},
            task_default_queue=queue,
        )
        declare(self.app)

    def task(self, name: str) -> Any:
        return self.app.tasks[name]

    def send(self, task: str, key: str, *args: Any, **options: Any) -> AsyncResult:
        return self.task(task).apply_async((key, *args), **options)

    def step(self, task: str, *args: Any) -> Signature:
        return self.task(task).si(*args)

    def close(self) -> None:
        # Results that nobody has read unsubscribe when they go; their server has to be there then.
        self.app.backend._pending_results.concrete.clear()
        self.app.close()
