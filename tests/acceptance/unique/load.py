"""
Publish hot keys from several threads and look what is left (`-m tests.acceptance.unique.load`).

Five nodes, a publisher and a worker with two threads. With `--far` two of the nodes are so much
further from the publisher than from the worker. When all tasks have ended nobody holds anything:
whatever stands on a node after the publish grace is a leftover. Then a node is killed, and each key
is published once more: a minority of leftovers and a dead node would leave no quorum.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import redis
from celery import Celery
from celery.signals import task_postrun

from celery_redlock import RedlockTask, is_duplicate
from celery_redlock.tasks.message import expiry
from celery_redlock.tasks.message.owner_label import parse_owner
from celery_redlock.tasks.rules.facts import Role
from celery_redlock.testing import LocalCluster
from tests.acceptance.program import ROOT
from tests.support.events import counters
from tests.support.waiting import TIMEOUT, wait_until

STAGE = "REDLOCK_LOAD_STAGE"
KEYS = tuple(f"hot-{number}" for number in range(5))
PLACES = tuple(f"redlock:{key}" for key in KEYS)
THREADS = 4
FAR_NODES = (3, 4)


def make_app(store: str, nodes: list[str]) -> Celery:
    """Return an app with one task."""
    app = Celery("load", broker=f"{store}/0", set_as_current=False)
    app.conf.update(
        redlock_nodes=nodes,
        redlock_node_timeout=1.0,  # nodes are as busy as the machine
        task_ignore_result=True,
        broker_connection_retry_on_startup=True,
        worker_enable_remote_control=False,
    )

    def run(key: str) -> None: ...

    app.task(
        name="load.run",
        shared=False,
        base=RedlockTask,
        lock_key="{key}",
        lock_mode="until_executed",
        lock_dedupe_window=60.0,
    )(run)
    return app


def make_worker_app(store: str, nodes: list[str], grace: float) -> Celery:
    """Return the worker's app; it counts the messages that are settled: run, or skipped."""
    expiry.PUBLISH_GRACE = grace
    counted = redis.Redis.from_url(f"{store}/2")

    def count(state: str | None = None, **_: object) -> None:
        if state == "SUCCESS":
            counted.incr("ended")

    task_postrun.connect(count, weak=False)
    return make_app(store, nodes)


@contextmanager
def publish_grace(seconds: float) -> Iterator[None]:
    """Have this process publish with another grace."""
    usual, expiry.PUBLISH_GRACE = expiry.PUBLISH_GRACE, seconds
    try:
        yield
    finally:
        expiry.PUBLISH_GRACE = usual


if STAGE in os.environ:
    app = make_worker_app(**json.loads(os.environ[STAGE]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """
    What a run has shown.

    Attributes:
        published: calls of `apply_async`.
        sent: of these, how many sent a message.
        unlocked: of these, how many without their lock.
        at_once: keys with something left on a node when the last task has ended, by key the nodes.
        after_grace: the same when the grace has passed.
        longest_left: seconds that the last of them would have stayed.
        publish_seconds: what publishing each key took then, one node being dead.
        unlocked_then: how many of these were sent without their lock.
    """

    published: int
    sent: int
    unlocked: int
    at_once: dict[str, list[int]]
    after_grace: dict[str, list[int]]
    longest_left: float
    publish_seconds: list[float]
    unlocked_then: int


class Publisher:
    """Threads that publish all keys in turn, until it is enough."""

    def __init__(self, app: Celery) -> None:
        self._task = app.tasks["load.run"]
        self._lock = threading.Lock()
        self.published = self.sent = 0

    def publish(self, key: str) -> None:
        result = self._task.delay(key)
        with self._lock:
            self.published += 1
            self.sent += not is_duplicate(result)

    def publish_for(self, seconds: float, most: int) -> None:
        until = time.monotonic() + seconds

        def work(first: int) -> None:
            turn = first
            while time.monotonic() < until and self.published < most:
                self.publish(KEYS[turn % len(KEYS)])
                turn += 1

        threads = [threading.Thread(target=work, args=(first,)) for first in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@contextmanager
def worker(stage: dict[str, Any]) -> Iterator[None]:
    """Let a worker with two threads work."""
    command = (sys.executable, "-m", "celery", "--quiet", "-A", "tests.acceptance.unique.load:app")
    options = ("worker", "-P", "threads", "-c", "2", "--loglevel=ERROR")
    quiet = ("--without-mingle", "--without-gossip", "--without-heartbeat")
    process = subprocess.Popen(
        [*command, *options, *quiet], cwd=ROOT, env={**os.environ, STAGE: json.dumps(stage)}
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def unlocked() -> int:
    """Return how many messages this process has sent without their lock."""
    return counters()["task_without_lock"]


def nobody_works(cluster: LocalCluster, counted: redis.Redis, sent: int) -> bool:
    """Whether each message is settled, and no worker has a key on any node."""
    ended: Any = counted.get("ended")
    if int(ended or 0) < sent:
        return False
    values = [cluster.client(node).mget(PLACES) for node in range(len(cluster))]
    owners = [parse_owner(value.decode()) for found in values for value in found if value]
    return all(owner is not None and owner.role is Role.QUEUED for owner in owners)


def leftovers(cluster: LocalCluster) -> tuple[dict[str, list[int]], float]:
    """Return on which nodes each key has something, and the longest time that is left to one."""
    found: dict[str, list[int]] = {}
    longest = 0.0
    for node in range(len(cluster)):
        for place in PLACES:
            left: Any = cluster.client(node).pttl(place)
            if left > 0:
                found.setdefault(place, []).append(node)
                longest = max(longest, left / 1000)
    return found, longest


def run(*, seconds: float, most: int, far: float, grace: float) -> Found:
    """Publish, look, kill a node, publish again."""
    with (
        publish_grace(grace),
        LocalCluster(1, armed=False) as broker,
        LocalCluster(5, proxy=True) as cluster,
    ):
        store = broker.urls[0].removesuffix("/0")
        counted = redis.Redis.from_url(f"{store}/2")
        publisher = Publisher(make_app(store, cluster.urls))
        unlocked_before = unlocked()
        for node in FAR_NODES if far else ():
            cluster.delay(node, far)
        with worker({"store": store, "nodes": cluster.server_urls, "grace": grace}):
            publisher.publish_for(seconds, most)
            published, sent = publisher.published, publisher.sent
            unlocked_then = unlocked()
            wait_until(lambda: nobody_works(cluster, counted, sent), 4 * TIMEOUT)
            at_once, _ = leftovers(cluster)
            time.sleep(grace + 0.5)
            after, longest = leftovers(cluster)
            cluster.kill(0)
            took = []
            for key in KEYS:
                begun = time.monotonic()
                publisher.publish(key)
                took.append(round(time.monotonic() - begun, 3))
    return Found(
        published=published,
        sent=sent,
        unlocked=unlocked_then - unlocked_before,
        at_once=at_once,
        after_grace=after,
        longest_left=longest,
        publish_seconds=took,
        unlocked_then=unlocked() - unlocked_then,
    )


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance.unique.load")
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--most", type=int, default=1_000_000, help="calls of apply_async")
    parser.add_argument("--far", type=float, default=0.0, help="seconds to two of the nodes")
    parser.add_argument("--grace", type=float, default=10.0, help="seconds of the publish grace")
    found = run(**vars(parser.parse_args()))
    print(json.dumps(asdict(found), indent=2))
    return int(bool(found.after_grace) or found.unlocked_then > 0)


if __name__ == "__main__":
    sys.exit(main())
