"""What task bodies use to be seen and held up, in whatever process they run."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import redis
from celery import Task

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def instant() -> float:
    """Read the one clock of all processes of this machine, which no test shifts."""
    return time.clock_gettime(_CLOCK)


def stage() -> Any:
    """Return what the test has set this process up with."""
    return json.loads(os.environ["ACCEPTANCE_STAGE"])


def _store() -> redis.Redis:
    # A connection for each use: bodies are interrupted anywhere, in a reply too, and fork.
    return redis.Redis.from_url(stage()["urls"]["journal"])


def note(key: str, event: str, **facts: Any) -> None:
    """Write an entry into the journal of this key."""
    with _store() as store:
        store.rpush(f"journal:{key}", json.dumps({"event": event, "pid": os.getpid(), **facts}))


def await_gate(key: str, *gates: str) -> None:
    """Hold the body up until the test opens the gate "go" or one of those named."""
    names = [f"gate:{key}:{gate}" for gate in ("go", *gates)]
    with _store() as store:
        while not store.exists(*names):
            time.sleep(0.02)


def times(key: str) -> int:
    """Return how often this was called for this key, over all processes."""
    with _store() as store:
        return int(store.incr(f"times:{key}"))


def first_time(key: str) -> bool:
    """Whether this is the first call for this key, over all processes."""
    return times(key) == 1


@contextlib.contextmanager
def visiting(task: Task, key: str) -> Iterator[None]:
    """Note when a body is entered, with its lease, and when and how it is left."""
    lease = getattr(task, "lease", None)
    try:
        # A test may end the body as soon as it reads this.
        note(
            key,
            "entered",
            id=task.request.id,
            task=task.name,
            retries=task.request.retries,
            host=task.request.hostname,
            token=getattr(task.request, "fencing_token", None),
            owner=lease and lease.owner,
        )
        yield
    except BaseException as reason:
        note(key, "unwound", id=task.request.id, by=type(reason).__name__)
        raise
    else:
        note(key, "left", id=task.request.id)
