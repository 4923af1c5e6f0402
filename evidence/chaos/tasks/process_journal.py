"""What a process of the task layer writes down; a forked child has a journal of its own."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import redis

from evidence.chaos.history import STALLED, TICK, Journal, now, watch_for_stalls


class Notes:
    """The journal of whichever process writes into it."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self._opened: tuple[int, Journal] | None = None
        self._watchers: list[threading.Thread] = []
        self._over = threading.Event()

    @property
    def process(self) -> str:
        """The name of this process: `<worker or publisher>/<pid>`."""
        return f"{self._name}/{os.getpid()}"

    def note(self, event: str, **details: Any) -> None:
        """Write one event, stamped now unless it brings its time `t`."""
        self._journal().note(event, **details)

    def watch_for_stalls(self) -> None:
        """Note from now on when this process did not get to run."""
        self._start(partial(watch_for_stalls, self.note, self._over))

    def watch_for_late_replies(self, server: redis.Redis) -> None:
        """Note from now on, as a stall of this process, when a server was late with a reply."""
        self._start(partial(self._ask, server))

    def close(self) -> None:
        """Watch no longer; for a process that outlives the run."""
        self._over.set()
        for watcher in self._watchers:
            watcher.join()
        if self._opened is not None:
            self._opened[1].close()

    def _journal(self) -> Journal:
        opened = self._opened
        if opened is None or opened[0] != os.getpid():
            path = self._directory / f"{self._name}-{os.getpid()}.jsonl"
            opened = self._opened = (os.getpid(), Journal(path, worker=self.process))
        return opened[1]

    def _start(self, watch: Callable[[], None]) -> None:
        self._watchers.append(threading.Thread(target=watch, daemon=True))
        self._watchers[-1].start()

    def _ask(self, server: redis.Redis) -> None:
        while not self._over.wait(TICK):
            asked = now()
            with contextlib.suppress(redis.RedisError):
                server.ping()
            if (replied := now()) - asked > STALLED:
                self.note("stalled", t=replied, since=asked)
        server.close()
