"""Servers for a run, and the workers of a scene."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from redis import Redis

from celery_redlock.testing import LocalCluster
from tests.support.rabbitmq import running_rabbitmq
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]

#: Seconds in which everything that was sent has to be dealt with.
DRAIN = 300.0

BROKERS = ("redis", "rabbitmq")
ACKS = ("early", "late")

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """
    How the workers run.

    Attributes:
        broker: `redis` or `rabbitmq`.
        processes: of the worker's pool.
        prefetch: Celery's `worker_prefetch_multiplier`.
        late: whether messages are acknowledged after their bodies.
    """

    broker: str = "redis"
    processes: int = 4
    prefetch: int = 4
    late: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Its cells in a table."""
        return (self.broker, str(self.processes), str(self.prefetch), ACKS[self.late])

    def __str__(self) -> str:
        broker, processes, prefetch, acks = self.columns
        return f"{broker}, {processes} processes, prefetch {prefetch}, acks {acks}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """
    The counts of a scene.

    Attributes:
        calls: sent, or delivered.
        bodies: begun.
        broken: how many keys had other bodies than promised, by kind.
        slowest: of races, the longest time from the call that asked a body to stop to its stop.
        late: seconds from when a body was due to when it began, the longest; 0 where none is due.
    """

    calls: int
    bodies: int
    broken: dict[str, int]
    slowest: float = 0.0
    late: float = 0.0


@contextlib.contextmanager
def servers(setup: Setup) -> Iterator[dict[str, str]]:
    """Start five lock nodes, a store and a broker; yield the environment of what uses them."""
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(LocalCluster(1, armed=False)).urls[0].removesuffix("/0")
        nodes = stack.enter_context(LocalCluster(n=5)).urls
        broker = f"{store}/0"
        if setup.broker == "rabbitmq":
            broker = stack.enter_context(running_rabbitmq())
        stage = {
            "broker": broker,
            "backend": f"{store}/1",
            "journal": f"{store}/2",
            "conf": {
                "redlock_nodes": list(nodes),
                "redlock_node_timeout": 1.0,  # nodes are as busy as the machine
                "broker_connection_retry_on_startup": True,
            },
            "setup": asdict(setup),
        }
        yield {**os.environ, "CALLS_STAGE": json.dumps(stage)}


@contextlib.contextmanager
def worker(setup: Setup) -> Iterator[None]:
    """Run a worker with the environment of this process; its output is on standard error."""
    command = [
        *(sys.executable, "-m", "celery", "--quiet", "-A", "evidence.calls.app", "worker"),
        *("--pool=prefork", f"--concurrency={setup.processes}", "--loglevel=ERROR"),
        *("--without-mingle", "--without-gossip", "--without-heartbeat"),
        *(f"--prefetch-multiplier={setup.prefetch}", f"--hostname=calls-{next(_numbers)}@stage"),
    ]
    running = subprocess.Popen(command, cwd=ROOT, stdout=sys.stderr)
    try:
        yield
    finally:
        running.terminate()
        running.wait()


def journal(url: str, scene: str) -> list[list[Any]]:
    """Return what a scene's tasks have noted."""
    with Redis.from_url(url) as store:
        return [json.loads(entry) for entry in store.lrange(scene, 0, -1)]


def wait_for_ends(results: list[Any]) -> None:
    """Wait until each of some tasks has a result."""
    left = {result.id: result for result in results}

    def all_ended() -> bool:
        for task_id in [task_id for task_id, result in left.items() if result.ready()]:
            del left[task_id]
        return not left

    wait_until(
        all_ended, DRAIN, message=lambda: f"{len(left)} of {len(results)} tasks to end: {left}"
    )
