"""Publishers of unique tasks and five real lock nodes, of which some may be down."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from celery.signals import before_task_publish

from celery_redlock import is_duplicate
from celery_redlock.tasks.config.client import client_for
from celery_redlock.tasks.message import expiry
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.message.owner_label import parse_owner
from celery_redlock.testing import LocalCluster
from celery_redlock.transport.redis import channel
from tests.support.greenlets import run_with_greenlets
from tests.support.tasks import Bench
from tests.support.waiting import wait_until

KEY = "redlock:k"
CALM = 5.0


@pytest.fixture
def bench(redlock_cluster: LocalCluster) -> Iterator[Bench]:
    bench = Bench(redlock_nodes=redlock_cluster.urls, redlock_node_timeout=CALM)
    yield bench
    bench.close()


def declare(bench: Bench, **options: Any) -> Any:
    options = {"lock_key": "k", "lock_mode": "until_executed", **options}
    task = bench.task(lambda: None, **options)
    # A connection is no cost of a publish.
    wait_until(lambda: task.lock_holder() is None and not failures(bench))
    return task


def failures(bench: Bench) -> Any:
    """Return the nodes that have failed or are not connected yet."""
    return client_for(bench.app).transport.failures()


def owners(cluster: LocalCluster, nodes: Iterable[int] = range(5)) -> list[str]:
    found = [cluster.client(node).get(KEY) for node in nodes]
    return [owner.decode() for owner in found if owner is not None]  # type: ignore[union-attr]


def lives(cluster: LocalCluster) -> list[float]:
    return [cluster.client(node).pttl(KEY) / 1000 for node in range(5)]  # type: ignore[operator]


@contextmanager
def heard_by(cluster: LocalCluster, nodes: range) -> Iterator[None]:
    """
    Let no message out before these nodes have taken its lock.

    A node that is slower than the publisher is not known to have it, and keeps it for the grace.
    """

    def wait(**_: Any) -> None:
        wait_until(
            lambda: len(owners(cluster, nodes)) == len(nodes),
            message=lambda: f"the lock on {nodes}: {owners(cluster, nodes)}",
        )

    before_task_publish.connect(wait)
    try:
        yield
    finally:
        before_task_publish.disconnect(wait)


def test_the_lock_stands_on_all_nodes_and_is_lengthened_on_all(
    bench: Bench, redlock_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However busy the machine is, a node that nobody stopped is only slow.
    monkeypatch.setattr(channel, "_FOLLOWUP_WINDOW", 3600.0)
    task = declare(bench)
    with heard_by(redlock_cluster, range(5)):
        message = bench.send(task)
    lock = Envelope.read(message).reservation
    assert lock is not None

    def long_everywhere() -> bool:
        task.lock_holder()  # reads what came late
        return owners(redlock_cluster) == [lock.owner] * 5 and min(lives(redlock_cluster)) > 3000

    wait_until(
        long_everywhere, message=lambda: f"{owners(redlock_cluster)} {lives(redlock_cluster)}"
    )


def test_of_twenty_publishers_at_once_one_sends(bench: Bench) -> None:
    task = declare(bench)
    together = threading.Barrier(20)

    def publish(_: int) -> Any:
        together.wait()
        return task.delay()

    with ThreadPoolExecutor(20) as pool:
        results = list(pool.map(publish, range(20)))
    assert bench.queue_length == 1
    assert len({result.id for result in results}) == 1
    assert sum(is_duplicate(result) for result in results) == 19


def test_of_twenty_that_replace_each_other_exactly_one_has_the_lock(
    bench: Bench, redlock_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.app.control, "revoke", lambda task_id: None)
    task = declare(bench, lock_on_duplicate="replace")
    together = threading.Barrier(20)

    def publish(_: int) -> str:
        together.wait()
        return str(task.delay().id)

    with ThreadPoolExecutor(20) as pool:
        ids = set(pool.map(publish, range(20)))
    assert (len(ids), bench.queue_length) == (20, 20)
    (owner, nodes), *_ = Counter(owners(redlock_cluster)).most_common()
    holder = parse_owner(owner)
    assert holder is not None
    assert holder.task_id in ids
    assert nodes >= 3


def test_two_nodes_down_change_nothing(bench: Bench, redlock_cluster: LocalCluster) -> None:
    task = declare(bench)
    redlock_cluster.kill(0)
    redlock_cluster.kill(1)
    first = task.delay()
    assert task.delay().id == first.id
    assert bench.queue_length == 1


def test_a_node_that_was_stopped_keeps_the_lock_of_a_dealt_with_message_for_the_grace_only(
    bench: Bench, redlock_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "PUBLISH_GRACE", 20.0)
    task = declare(bench)
    redlock_cluster.pause(0)
    with heard_by(redlock_cluster, range(1, 5)):
        task.delay()
    redlock_cluster.resume(0)
    wait_until(
        lambda: len(owners(redlock_cluster)) == 5,
        message=lambda: f"the stopped node never got the command: {owners(redlock_cluster)}",
    )
    assert lives(redlock_cluster)[0] <= 20
    # Not waited for by the publisher.
    wait_until(lambda: min(lives(redlock_cluster)[1:]) > 3000)


def test_a_forked_publisher_has_connections_of_its_own(
    bench: Bench, redlock_cluster: LocalCluster
) -> None:
    task = declare(bench)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            task.delay()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    holder = task.lock_holder()
    assert (holder.pid, holder.state) == (child, "queued")
    assert task.delay().id == holder.task_id


GREENLETS = """
import sys
from tests.support.tasks import Bench
bench = Bench(redlock_nodes=sys.argv[1:], redlock_node_timeout=5.0)
task = bench.task(lambda: None, lock_key="k", lock_mode="until_executed")
jobs = [spawn(task.delay) for _ in range(20)]
ids = {job.get(timeout=30).id for job in jobs}
assert (len(ids), bench.queue_length) == (1, 1), (ids, bench.queue_length)
"""


def test_greenlets_publish_side_by_side(redlock_cluster: LocalCluster) -> None:
    run_with_greenlets("gevent", GREENLETS, *redlock_cluster.urls)
