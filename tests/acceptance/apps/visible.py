"""What task bodies use to be seen and held up, in whatever process they run."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from typing import Any, Self
from urllib.parse import urlsplit

import hiredis
from celery import Task

# Of a URL that names no port, as those of containers do.
REDIS_PORT = 6379
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def instant() -> float:
    """Read the one clock of all processes of this machine, which no test shifts."""
    return time.clock_gettime(_CLOCK)


def stage() -> Any:
    """Return what the test has set this process up with."""
    return json.loads(os.environ["ACCEPTANCE_STAGE"])


class _Store:
    """
    A connection for one use: bodies are interrupted anywhere, in a reply too, and fork.

    It is no client of redis-py: those have a `__del__`, and Python only prints an exception that a
    signal's handler raises in one. A body that a test terminates at that moment would go on.
    """

    def __init__(self) -> None:
        url = urlsplit(stage()["urls"]["journal"])
        self._socket = socket.create_connection((str(url.hostname), url.port or REDIS_PORT))
        self._reader = hiredis.Reader()
        self.ask("SELECT", url.path.removeprefix("/"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, *words: str) -> Any:
        """Send a command, and return the reply."""
        self._socket.sendall(hiredis.pack_command(words))
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(65536))
        return reply


def note(key: str, event: str, **facts: Any) -> None:
    """Write an entry into the journal of this key."""
    with _Store() as store:
        entry = json.dumps({"event": event, "pid": os.getpid(), **facts})
        store.ask("RPUSH", f"journal:{key}", entry)


def await_gate(key: str, *gates: str) -> None:
    """Hold the body up until the test opens the gate "go" or one of those named."""
    names = [f"gate:{key}:{gate}" for gate in ("go", *gates)]
    with _Store() as store:
        while not store.ask("EXISTS", *names):
            time.sleep(0.02)


def times(key: str) -> int:
    """Return how often this was called for this key, over all processes."""
    with _Store() as store:
        return int(store.ask("INCR", f"times:{key}"))


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
