"""Tasks, messages and moments that several tests of tasks need."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kombu.exceptions import OperationalError

from celery_redlock.tasks.bootsteps import LockStep
from tests.support.tasks import Bench
from tests.support.unique import MODES, declare

ALL_MODES = ("while_executing", *MODES)


def job(bench: Bench, body: Any = None, **options: Any) -> Any:
    """Declare a task that locks while it runs, and does not wait where its lock is taken."""
    return declare(bench, body, **{"lock_mode": "while_executing", **options})


def occupy(bench: Bench) -> Any:
    """Let a program have the key of a test's task."""
    return bench.elsewhere.acquire("k", ttl=60)


def run(self: Any, *args: Any) -> str:
    return "ran"


def counting(declared: Any, bench: Bench, body: Any = run, **options: Any) -> tuple[Any, list[str]]:
    """Declare a task by `job` or `declare`; return it with the ids of its runs."""
    runs: list[str] = []

    def counted(self: Any, *args: Any) -> Any:
        runs.append(self.request.id)
        return body(self, *args)

    return declared(bench, counted, **options), runs


def raising(error: BaseException) -> Any:
    """Return a body that raises this, whatever its arguments are."""

    def body(*args: Any, **kwargs: Any) -> None:
        raise error

    return body


def retry_once(self: Any, *args: Any) -> str:
    """Ask for a retry at once, and run in that one."""
    if not self.request.retries:
        raise self.retry(countdown=0)
    return "ran"


def sent_without(bench: Bench, body: Any = None, **options: Any) -> dict[str, Any]:
    """Declare a unique task, and send it as a program does that does not know us."""
    declare(bench, body, **options)
    bench.app.finalize()
    bench.app.send_task("job")
    return bench.receive()


def redelivered(request: dict[str, Any]) -> dict[str, Any]:
    """Return a message as the broker delivers it when its worker was lost."""
    return {**request, "delivery_info": {**request["delivery_info"], "redelivered": True}}


def before_next(owner: Any, name: str, call: Callable[[], Any]) -> None:
    """Have something done before a method of one bench's objects is called the next time."""
    method = getattr(owner, name)

    def called(*args: Any, **kwargs: Any) -> Any:
        setattr(owner, name, method)
        call()
        return method(*args, **kwargs)

    setattr(owner, name, called)


def sent_while_released(task: Any, lease: Any) -> Any:
    """Send a task while the holder of its key lets go; return the result of the call."""
    sent: list[Any] = []
    caller = threading.Thread(target=lambda: sent.append(task.delay()))
    caller.start()
    lease.release()
    caller.join()
    return sent[0]


def break_broker(bench: Bench) -> None:
    """Have the broker refuse what the app sends from now on."""
    bench.app.amqp.send_task_message = raising(OperationalError("broker down"))


def start_worker(bench: Bench, task_events: bool = False) -> None:
    """Let a worker look at the tasks of the app, as it does before it takes a message."""
    worker = SimpleNamespace(app=bench.app, pool_cls=None, task_events=task_events)
    LockStep(worker).create(worker)
