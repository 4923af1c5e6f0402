"""
A real prefork worker that drains queues, one at a time.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.stopwatch import Stopwatch

_ROOT = Path(__file__).resolve().parents[1]
_TIMEOUT = 120.0


@contextlib.contextmanager
def running_worker(name: str, environment: Mapping[str, str], log: Path) -> Iterator[Path]:
    """Run a worker of `bench.worker` that listens at no queue yet; give its log."""
    command = [
        *(sys.executable, "-m", "celery", "-A", "bench.worker", "worker"),
        *("--pool=prefork", "--concurrency=2", "--queues=idle", "--loglevel=WARNING"),
        *("--without-mingle", "--without-gossip", "--without-heartbeat"),
        f"--hostname={name}",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own command line
            command, cwd=_ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield log
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_it_listens(app: Any, name: str, log: Path) -> None:
    """Wait until a worker can be told what to do."""
    deadline = time.monotonic() + _TIMEOUT
    while not app.control.ping([name], timeout=0.5, limit=1):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the worker does not start; the end of its log:\n{_tail(log)}")


def drain(app: Any, name: str, queue: str, task: str, stopwatch: Stopwatch, log: Path) -> float:
    """Let the worker run a queue full of one task, and return tasks per second."""
    stopwatch.reset()
    with app.producer_pool.acquire(block=True) as producer:
        for place in range(len(stopwatch)):
            app.send_task(task, (place,), queue=queue, producer=producer, ignore_result=True)
    told = {"destination": [name], "reply": True, "timeout": _TIMEOUT, "limit": 1}
    app.control.add_consumer(queue, **told)
    deadline = time.monotonic() + _TIMEOUT
    while not stopwatch.complete:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the worker did not run all of {task}; its log:\n{_tail(log)}")
        time.sleep(0.02)
    app.control.cancel_consumer(queue, **told)
    return stopwatch.rate()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])
