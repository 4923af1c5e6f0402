"""The watchdog keeps leases alive, and knows when to stop."""

from __future__ import annotations

import itertools
import threading
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from celery_redlock import LeaseLost, Redlock
from celery_redlock.core.holding import Holding
from celery_redlock.core.lease import holding_of
from celery_redlock.core.watchdog import process_watchdog
from tests.integration.watchdog.watching import Told, extend_now, renewed
from tests.support.cases import first_of
from tests.support.nodes import Nodes, ServerNodes
from tests.support.patching import channel_type, follow
from tests.support.waiting import TIMEOUT, wait_until


def test_a_watched_lease_outlives_its_ttl(nodes: Nodes, client: Redlock) -> None:
    with client.lock("key", ttl=3.0) as lease:
        begun = holding_of(lease).now()
        wait_until(lambda: holding_of(lease).now() > begun + 4.5)
        lease.check()
        nodes.wait_held(lease)
    nodes.wait_free("key")


def test_renewals_come_at_a_third_of_the_ttl(nodes: Nodes, client: Redlock) -> None:
    with client.lock("key", ttl=3.0) as lease:
        renewed(lease)  # for a first short lease there is one at once, which connects
        trusts = [holding_of(lease).valid_until]
        for _ in range(2):
            renewed(lease)
            trusts.append(holding_of(lease).valid_until)
    # Trust counts from the sending, so its steps are the time between renewals.
    steps = [later - earlier for earlier, later in itertools.pairwise(trusts)]
    assert all(step >= 0.9 for step in steps)


def test_a_lease_that_is_not_watched_ends_with_its_ttl(nodes: Nodes, client: Redlock) -> None:
    lease = client.acquire("key", ttl=0.4, wait=TIMEOUT)
    wait_until(lambda: not lease.is_valid)
    assert lease.lost == "it was not extended in time"
    nodes.wait_free("key")


@pytest.mark.parametrize("number_of_leases", first_of([300, 1000]))
def test_more_leases_than_are_renewed_at_once_are_renewed(
    nodes: Nodes, client: Redlock, number_of_leases: int
) -> None:
    told = Told()
    leases = []
    for number in range(number_of_leases):
        leases.append(client.acquire(f"key-{number}", ttl=12.0, wait=5.0))
        client.watch(leases[-1], on_lost=told)
    before = [holding_of(lease).valid_until for lease in leases]
    wait_until(
        lambda: all(
            holding_of(lease).valid_until > trust
            for lease, trust in zip(leases, before, strict=True)
        )
    )
    assert told.leases == []
    client.close()
    nodes.wait_free("key-0")
    nodes.wait_free(leases[-1].key)


def test_after_release_nothing_is_renewed(nodes: Nodes, client: Redlock) -> None:
    told = Told()
    lease = client.acquire("key", ttl=5.0)
    client.watch(lease, on_lost=told)
    renewed(lease)
    assert lease.release()
    nodes.wait_free("key")
    trust = holding_of(lease).valid_until
    with client.lock("other", ttl=5.0) as other:
        renewed(other)  # the first one would have been due before
    assert trust == holding_of(lease).valid_until
    assert told.leases == []
    assert lease.lost is None


def delay_requests(nodes: ServerNodes, seconds: float) -> None:
    """Delay each later command."""
    for node in range(5):
        nodes.cluster.delay(node, seconds, only="requests")


@pytest.mark.parametrize("by", ["watchdog", "call"])
def test_a_release_while_an_extension_is_under_way_leaves_a_minimum_hold_as_it_is(
    proxied: ServerNodes, by: str
) -> None:
    client = proxied.connected(node_timeout=5.0)
    lease = proxied.lease_of(client, ttl=60.0, at_least_for=10.0)
    client.watch(lease)
    extend_now(lease)
    renewed(lease)  # the watchdog has connected
    delay_requests(proxied, 0.5)

    def extend() -> None:
        with suppress(LeaseLost):
            lease.extend()

    thread = threading.Thread(target=extend if by == "call" else lambda: extend_now(lease))
    thread.start()
    wait_until(lambda: holding_of(lease)._extending, interval=0.001)
    delay_requests(proxied, 0.0)
    assert lease.release()
    process_watchdog().stop_if_idle()
    thread.join()
    assert all(proxied.left(node, "key") <= 10 for node in range(5))


def test_no_renewal_follows_a_release_that_came_while_the_watchdog_was_connecting(
    proxied: ServerNodes,
) -> None:
    client = proxied.connected(node_timeout=5.0)
    lease = proxied.lease_of(client, ttl=60.0, at_least_for=10.0)
    client.watch(lease)
    delay_requests(proxied, 60.0)
    begun = [proxied.connections(node) for node in range(5)]
    extend_now(lease)
    wait_until(lambda: all(proxied.connections(node) > begun[node] for node in range(5)))
    delay_requests(proxied, 0.0)
    assert lease.release()
    for node in range(5):
        proxied.cluster.heal(node)
    process_watchdog().stop_if_idle()
    assert all(proxied.left(node, "key") <= 10 for node in range(5))


def test_no_extension_follows_a_release_that_came_while_the_call_was_connecting(
    nodes: Nodes, client: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = nodes.lease_of(client, ttl=60.0, at_least_for=10.0)

    def release_once() -> None:
        monkeypatch.undo()
        lease.release()

    follow(monkeypatch, channel_type(client), "connect", then=release_once)
    with pytest.raises(LeaseLost):
        lease.extend()
    assert all(nodes.left(node, "key") <= 10 for node in range(5))


def test_a_lease_is_extended_at_a_third_of_the_ttl_that_a_call_has_given_it(
    nodes: Nodes, client: Redlock
) -> None:
    lease = client.acquire("key", ttl=60.0)
    client.watch(lease)
    lease.extend(3.0)  # which shortens no lease
    extend_now(lease)
    watch = process_watchdog()._watches[holding_of(lease)]
    wait_until(lambda: watch.extend_at > 0)
    assert watch.extend_at <= holding_of(lease).now() + 1.0


@pytest.mark.parametrize("how", ["release", "mark_lost"])
def test_a_lease_that_has_ended_is_not_extended(nodes: Nodes, client: Redlock, how: str) -> None:
    lease = nodes.lease_of(client, ttl=60.0, at_least_for=10.0)
    holding_of(lease).ttl = 600.0
    getattr(lease, how)()
    client.watch(lease)
    extend_now(lease)
    wait_until(lambda: not process_watchdog()._watches)
    assert all(nodes.left(node, "key") <= 60 for node in range(5))


def test_a_release_does_not_overtake_an_extension_on_its_way_to_slow_nodes(
    proxied: ServerNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = proxied.connected(node_timeout=5.0)
    lease = proxied.lease_of(client, ttl=60.0, at_least_for=10.0)
    released = threading.Event()
    apply = Holding.apply_extension

    def apply_after_release(*args: Any) -> None:
        released.wait(TIMEOUT)  # and its connections are in use until then
        apply(*args)

    def extend() -> None:
        with suppress(LeaseLost):
            lease.extend()

    monkeypatch.setattr(Holding, "apply_extension", apply_after_release)
    for node in (0, 1):
        proxied.cluster.delay(node, 0.5, only="requests")
    thread = threading.Thread(target=extend)
    thread.start()
    wait_until(lambda: holding_of(lease)._extending, interval=0.001)
    wait_until(lambda: not holding_of(lease)._extending)
    delay_requests(proxied, 0.0)
    assert lease.release()
    released.set()
    thread.join()
    for node in range(5):
        proxied.cluster.heal(node)
    assert all(proxied.left(node, "key") <= 10 for node in range(5))


def test_a_release_in_a_callback_does_not_wait_for_the_extension_that_called_it(
    nodes: Nodes, client: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = nodes.lease_of(client, ttl=60.0, at_least_for=10.0)
    transport = holding_of(lease).transport
    waits: list[float] = []
    follow(monkeypatch, channel_type(client), "exchange", then=partial(lease.release, wait=False))
    monkeypatch.setattr(transport, "sleep", waits.append)
    with pytest.raises(LeaseLost):
        lease.extend()
    assert waits == []


def test_a_release_waits_for_an_extension_although_the_process_paused_meanwhile(
    redlock_memory_nodes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Redlock(redlock_memory_nodes) as client:
        lease = holding_of(client.acquire("key", ttl=30.0))
        extending = threading.Thread(target=lease.begin_extension)
        extending.start()
        extending.join()
        paused = iter([60.0])

        def pause_then_end(_: float) -> None:
            if (seconds := next(paused, None)) is None:
                lease._extending.clear()
            else:
                now = lease.now()
                monkeypatch.setattr(type(lease), "now", lambda _: now + seconds)

        monkeypatch.setattr(lease.transport, "sleep", pause_then_end)
        lease.wait_for_extension()
        monkeypatch.undo()
        assert not lease._extending


def test_unwatching_ends_the_renewal_and_leaves_the_lease(nodes: Nodes, client: Redlock) -> None:
    lease = client.acquire("key", ttl=2.0, wait=TIMEOUT)
    client.watch(lease)
    renewed(lease)
    client.unwatch(lease)
    wait_until(lambda: not lease.is_valid)
    assert lease.lost == "it was not extended in time"


def test_watching_again_replaces_the_watch(nodes: Nodes, client: Redlock) -> None:
    first, second = Told(), Told()
    lease = client.acquire("key", ttl=5.0)
    client.watch(lease, on_lost=first)
    client.watch(lease, on_lost=second, max_hold=0.4)
    wait_until(lambda: second.leases)
    assert first.leases == []


def test_watching_again_and_again_puts_no_renewal_off(redlock_memory_nodes: list[str]) -> None:
    with Redlock(redlock_memory_nodes) as client:
        lease = client.acquire("key", ttl=30.0)
        client.watch(lease)
        first = process_watchdog()._watches[holding_of(lease)]
        client.watch(lease, max_hold=100.0)
        again = process_watchdog()._watches[holding_of(lease)]
        assert again.extend_at == first.extend_at
        assert again.hold_until < first.hold_until
