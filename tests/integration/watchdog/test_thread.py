"""The thread of the watchdog survives errors, serves all clients and ends after the last."""

from __future__ import annotations

import threading

import pytest

from celery_redlock import Redlock
from celery_redlock.core import client_of, watchdog
from celery_redlock.core.lease import holding_of
from celery_redlock.core.watchdog import Watchdog, process_watchdog
from tests.integration.watchdog.watching import renewed
from tests.support.cases import first_of
from tests.support.nodes import Nodes
from tests.support.patching import channel_type, fail_first
from tests.support.waiting import wait_until


def in_its_thread(*_: object) -> bool:
    return process_watchdog().is_current_thread()


@pytest.mark.parametrize("error", first_of([RuntimeError, KeyboardInterrupt, MemoryError]))
def test_the_watchdog_survives_any_exception_and_keeps_the_other_leases(
    nodes: Nodes, client: Redlock, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    failures = [error] * 3
    with client.lock("key", ttl=5.0) as lease, client.lock("key 2", ttl=5.0) as other:
        renewed(lease)
        fail_first(monkeypatch, channel_type(client), "exchange", failures, when=in_its_thread)
        wait_until(lambda: not failures or lease.lost)
        renewed(lease, 2)
        renewed(other, 2)


def test_the_watchdog_survives_an_exception_between_its_rounds(
    nodes: Nodes, client: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [MemoryError] * 3
    with client.lock("key", ttl=5.0) as lease:
        fail_first(monkeypatch, Watchdog, "_take_due", failures)
        renewed(lease, 2)
    assert not failures


def test_an_error_while_it_takes_what_is_due_costs_no_lease_its_renewal(
    nodes: Nodes, client: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_second(_: Watchdog, watch: object) -> bool:
        # The first is popped then, and the second not looked at yet.
        return in_its_thread() and watch is second

    failures = [MemoryError] * 3
    with client.lock("key", ttl=5.0) as lease, client.lock("key 2", ttl=5.0) as other:
        second = process_watchdog()._watches[holding_of(other)]
        fail_first(monkeypatch, Watchdog, "_is_live", failures, when=is_second)
        renewed(lease, 2)
        renewed(other, 2)
    assert not failures


def test_a_thread_that_has_ended_makes_way_for_another(
    nodes: Nodes, client: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One of its own: a lease that an earlier test has left would keep the thread.
    monkeypatch.setattr(watchdog, "_watchdog", Watchdog())
    with monkeypatch.context() as patched:
        patched.setattr(Watchdog, "_work", lambda *_: None)
        lease = client.acquire("key", ttl=5.0)
        client.watch(lease)
        wait_until(lambda: process_watchdog()._thread is None)
    client.watch(lease)
    renewed(lease)
    lease.release()
    client.close()


def test_one_thread_serves_all_clients_and_ends_when_the_last_is_closed(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One of its own: what an earlier test has left would keep the thread.
    monkeypatch.setattr(watchdog, "_watchdog", Watchdog())
    before = threading.active_count()
    clients = [nodes.connected() for _ in range(3)]
    leases = [client.acquire(f"key-{n}", ttl=5.0) for n, client in enumerate(clients)]
    for client, lease in zip(clients, leases, strict=True):
        client.watch(lease)
    assert process_watchdog()._thread is not None
    for client in clients:
        assert process_watchdog()._thread is not None
        client.close()
    assert process_watchdog()._thread is None
    wait_until(lambda: threading.active_count() <= before)


def test_watching_many_short_leases_keeps_no_trace_of_them(redlock_memory_nodes: list[str]) -> None:
    with Redlock(redlock_memory_nodes) as client, client.lock("long", ttl=30.0):
        for number in range(600):
            with client.lock(f"key-{number}", ttl=30.0):
                pass
        assert len(process_watchdog()._heap) < 300
        assert len(client_of(client)._leases) == 1
