"""The app, set up from the environment, and what its bodies use to be seen and held up."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import redis
from celery import Celery, Task

STAGE = json.loads(os.environ["ACCEPTANCE_STAGE"])

app = Celery(
    "acceptance",
    broker=STAGE["urls"]["broker"],
    backend=STAGE["urls"]["backend"],
    include=STAGE["conf"].pop(
        "include",
        [
            f"tests.acceptance.apps.{name}"
            for name in ("plain", "endings", "conflicts", "losses", "calls")
        ],
    ),
)
app.conf.update(broker_connection_retry_on_startup=True, **STAGE["conf"])


def _store() -> redis.Redis:
    # A connection for each use: bodies are interrupted anywhere, in a reply too, and fork.
    return redis.Redis.from_url(STAGE["urls"]["journal"])


def note(key: str, event: str, **facts: Any) -> None:
    """Write an entry into the journal of this key."""
    with _store() as store:
        store.rpush(f"journal:{key}", json.dumps({"event": event, "pid": os.getpid(), **facts}))


def await_gate(key: str, gate: str = "go") -> None:
    """Hold the body up until the test opens the gate."""
    with _store() as store:
        while not store.exists(f"gate:{key}:{gate}"):
            time.sleep(0.02)


def first_time(key: str) -> bool:
    """Whether this is the first call for this key, over all processes."""
    with _store() as store:
        return store.incr(f"times:{key}") == 1


@contextlib.contextmanager
def visiting(task: Task, key: str) -> Iterator[None]:
    """Note when a body is entered, with its lease, and when and how it is left."""
    lease = getattr(task, "lease", None)
    note(
        key,
        "entered",
        id=task.request.id,
        task=task.name,
        retries=task.request.retries,
        token=getattr(task.request, "fencing_token", None),
        owner=lease and lease.owner,
    )
    try:
        yield
    except BaseException as reason:
        note(key, "unwound", id=task.request.id, by=type(reason).__name__)
        raise
    else:
        note(key, "left", id=task.request.id)
