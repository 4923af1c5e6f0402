"""A client leaves no thread, descriptor or key behind, however it is used and left."""

from __future__ import annotations

import gc
import resource
import threading

import pytest

from celery_redlock import LockNotAcquired, Redlock
from celery_redlock.core import client_of
from celery_redlock.core.lease import holding_of
from celery_redlock.testing import LocalCluster
from tests.support.leaks import descriptors, nothing_left
from tests.support.nodes import ServerNodes
from tests.support.together import in_threads
from tests.support.waiting import wait_until


@pytest.fixture
def nodes(redlock_cluster: LocalCluster) -> ServerNodes:
    for node in range(5):
        redlock_cluster.client(node).ping()  # the clients that look have their connections now
    return ServerNodes(redlock_cluster)


def lock_keys(nodes: ServerNodes) -> set[bytes]:
    keys: set[bytes] = set()
    for node in range(5):
        keys |= set(nodes.cluster.client(node).scan_iter("redlock:*"))
    return keys


def test_closing_leaves_no_thread_descriptor_or_key(nodes: ServerNodes) -> None:
    with nothing_left(), Redlock(nodes.urls, node_timeout=5.0) as client:
        with client.lock("block", ttl=5.0) as lease:
            trust = holding_of(lease).valid_until
            wait_until(lambda: holding_of(lease).valid_until > trust)
        client.watch(client.acquire("left over", ttl=5.0))
        client.acquire("left over, too", ttl=60.0)
    wait_until(lambda: not lock_keys(nodes))


def test_disconnecting_and_closing_twice_leaves_nothing_either(nodes: ServerNodes) -> None:
    with nothing_left():
        client = Redlock(nodes.urls, node_timeout=5.0)
        client.disconnect()
        client.acquire("key").release()
        client.close()
        client.close()


def test_closing_at_once_waits_for_connections_that_are_being_made(nodes: ServerNodes) -> None:
    nodes.pause(0, 1)
    with nothing_left():
        for _ in range(3):
            with Redlock(nodes.urls, node_timeout=0.2) as client:
                client.acquire("key", wait=5.0).release()


@pytest.mark.full
def test_a_thousand_clients_opened_and_closed_leak_nothing(nodes: ServerNodes) -> None:
    def open_and_close(times: int) -> None:
        for _ in range(times):
            with Redlock(nodes.urls[:3], node_timeout=5.0) as client:
                client.acquire("key", wait=5.0).release()

    open_and_close(50)
    with nothing_left():
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        open_and_close(950)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < memory + 20_000  # KiB


def test_a_client_that_was_never_closed_leaves_its_descriptors_to_the_collector(
    nodes: ServerNodes,
) -> None:
    open_before = descriptors()
    client = Redlock(nodes.urls, node_timeout=5.0)
    client.acquire("key").release()
    nodes.connect(client)
    del client
    gc.collect()
    wait_until(lambda: gc.collect() >= 0 and descriptors() == open_before)


def test_what_is_said_to_a_stopped_node_is_bounded(nodes: ServerNodes) -> None:
    with Redlock(nodes.urls, node_timeout=0.2) as client:
        nodes.connect(client)
        nodes.pause(0, 1)
        for number in range(3000):
            client.acquire(f"key-{number}", wait=5.0).release()
        channel = client_of(client).transport.checkout()
        pending = [len(connection.pending) for connection in channel._by_node if connection]  # type: ignore[attr-defined]
        client_of(client).transport.checkin(channel)
        assert max(pending) <= 2000
        nodes.resume(0, 1)
        wait_until(lambda: client.acquire("last", wait=5.0).release() and not lock_keys(nodes))


def test_leases_that_are_left_to_end_are_forgotten(redlock_memory_nodes: list[str]) -> None:
    with Redlock(redlock_memory_nodes, guard=False) as client:
        kept = client.acquire("kept")
        ended = [client.acquire(f"key-{number}", ttl=0.2, wait=5.0) for number in range(500)]
        wait_until(lambda: not any(lease.is_valid for lease in ended))
        for number in range(501):
            client.acquire(f"more-{number}", ttl=60.0)
        assert kept in client_of(client)._leases
        assert not set(ended) & set(client_of(client)._leases)


def test_many_threads_share_few_connections_afterwards(nodes: ServerNodes) -> None:
    with Redlock(nodes.urls, node_timeout=5.0) as client:
        in_threads(80, lambda number: client.acquire(f"key-{number}", wait=10.0).release())
        assert len(client_of(client).transport._idle) <= 64  # type: ignore[attr-defined]


def test_locks_of_many_keys_leave_few_counters(nodes: ServerNodes) -> None:
    with Redlock(nodes.urls[:1], node_timeout=5.0) as client:
        for number in range(6000):
            client.acquire(f"key-{number}").release()
    assert nodes.cluster.client(0).dbsize() <= 4096 + 5


def test_a_full_process_does_not_hang(nodes: ServerNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    with Redlock(nodes.urls, node_timeout=0.2) as client:
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refuse)
            with pytest.raises(LockNotAcquired, match="can't start new thread"):
                client.acquire("key")
        client.acquire("key", wait=10.0).release()
