"""A hundred publishers of one key at the same moment."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import Any

import redis

from tests.acceptance.scene import Journal, Lock
from tests.acceptance.unique.publisher import Publisher
from tests.acceptance.worker import ROOT
from tests.support.waiting import TIMEOUT, wait_until

PROCESSES = 4
THREADS = 25
TASK = "unique.until_executed"


class Crowd:
    """Publishers in several processes, which a message of the store sets off together."""

    def __init__(self, *, key: str, urls: dict[str, str], conf: dict[str, Any]) -> None:
        self._key = key
        self._store = redis.Redis.from_url(urls["journal"])
        command = (sys.executable, "-m", "tests.acceptance.apps.unique_crowd")
        environment = {**os.environ, "ACCEPTANCE_STAGE": json.dumps({"urls": urls, "conf": conf})}
        self._processes = [
            subprocess.Popen([*command, TASK, key, str(THREADS)], cwd=ROOT, env=environment)
            for _ in range(PROCESSES)
        ]
        self._channel = f"turns:{key}"
        wait_until(
            lambda: self._store.pubsub_numsub(self._channel)[0][1] == PROCESSES,
            message="the publishers to be ready",
        )

    def publish(self, turn: str) -> list[dict[str, Any]]:
        """Let all publish at once; return what each of them got."""
        self._store.publish(self._channel, turn)
        results = f"published:{self._key}:{turn}"
        wait_until(
            lambda: self._store.llen(results) == PROCESSES * THREADS,
            message=lambda: f"{turn}: {self._store.llen(results)} have published",
        )
        return [json.loads(result) for result in self._store.lrange(results, 0, -1)]

    @property
    def log(self) -> list[str]:
        """What the publishers have warned of."""
        return [line.decode() for line in self._store.lrange(f"log:{self._key}", 0, -1)]

    def end(self) -> None:
        self._store.publish(self._channel, "end")
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            process.wait()
        self._store.close()


def one_of_each_turn(
    turns: int, crowd: Crowd, publisher: Publisher, lock: Lock, journal: Journal
) -> list[str]:
    """Let all publish, see that the others' results are those of one task, and return these."""
    chosen = []
    for number in range(turns):
        turn = f"turn-{number}"
        results = crowd.publish(turn)
        first = [result["id"] for result in results if result.get("duplicate") is False]
        others = [result["id"] for result in results if result.get("duplicate") is True]
        assert (len(first), len(others)) == (1, 99), f"{turn}: {results} {crowd.log}"
        assert set(others) == set(first)
        journal.open(turn)
        assert publisher.app.AsyncResult(first[0]).get(timeout=TIMEOUT) == "held"
        lock.wait_until_gone()
        chosen += first
    return chosen
