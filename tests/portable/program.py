"""
One process with a worker and what sends to it: `python -m tests.portable.program POOL NODE...`.

It prints a JSON object of facts.
"""

from __future__ import annotations

from tests.portable.less import take_away

take_away()

import _thread  # noqa: E402
import contextlib  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

from celery import Celery  # noqa: E402
from celery.worker import state  # noqa: E402

from celery_redlock import LeaseLost, RedlockTask  # noqa: E402
from celery_redlock.core.lease import holding_of  # noqa: E402

TIMEOUT = 60.0

pool, *nodes = sys.argv[1:]
app = Celery("portable", broker="memory://", backend="cache+memory://")
app.conf.update(redlock_nodes=nodes, redlock_node_timeout=5.0, worker_redirect_stdouts=False)
running: list[str] = []
most = [0]


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + TIMEOUT
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.005)
    return found


def result_of(sent: Any) -> Any:
    # This process is a worker as well, which a task must not wait for.
    return sent.get(timeout=TIMEOUT, propagate=False, disable_sync_subtasks=False)


@app.task(base=RedlockTask, bind=True, lock_key="account", lock_ttl=30, default_retry_delay=0)
def alone(self: RedlockTask) -> int | None:
    running.append("alone")
    most[0] = max(most[0], len(running))
    time.sleep(0.1)
    running.remove("alone")
    return self.request.fencing_token


@app.task(base=RedlockTask, bind=True, lock_key="long", lock_ttl=2)
def outlast(self: RedlockTask) -> bool:
    lease = self.lease
    assert lease is not None
    first = holding_of(lease).valid_until
    return bool(until(lambda: holding_of(lease).valid_until > first + 1) and lease.is_valid)


@app.task(base=RedlockTask, bind=True, lock_key="lost")
def lose(self: RedlockTask) -> str:
    assert self.lease is not None
    # One call into the interpreter: the loss may strike `Thread.start` half done.
    _thread.start_new_thread(self.lease.mark_lost, ())
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        pass
    return "ran to its end"


@app.task(base=RedlockTask, lock_key="{number}", lock_mode="until_executed")
def unique(number: int) -> int:
    return number


def ask(facts: dict[str, Any]) -> None:
    first = unique.delay(7)
    facts["a duplicate is not sent"] = unique.delay(7).id == first.id
    worker_is_free.set()
    facts["a unique task runs"] = result_of(first) == 7
    tokens = [result_of(sent) for sent in [alone.delay() for _ in range(3)]]
    facts["bodies with one key run one after the other"] = most == [1]
    facts["each holder has its token"] = len(set(tokens)) == 3 and None not in tokens
    facts["a lease is extended while its body runs"] = result_of(outlast.delay()) is True
    lost = result_of(lose.delay())
    is_lost = isinstance(lost, LeaseLost)
    facts["a body is interrupted when its lease is lost"] = is_lost or repr(lost)


def send(facts: dict[str, Any]) -> None:
    try:
        ask(facts)
    finally:
        worker_is_free.set()
        state.should_stop = 0


worker_is_free = threading.Event()

if __name__ == "__main__":
    found: dict[str, Any] = {}
    sender = threading.Thread(target=send, args=(found,))
    sender.start()
    worker_is_free.wait()
    with contextlib.suppress(SystemExit):
        app.worker_main(["worker", f"--pool={pool}", "--concurrency=3", "--loglevel=WARNING"])
    sender.join()
    print(json.dumps(found))
