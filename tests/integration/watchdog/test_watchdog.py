"""The watchdog keeps leases alive, says in time when one is lost, and knows when to stop."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from functools import partial

import pytest

from celery_redlock import Lease, LeaseLost, QuorumUnavailable, Redlock
from celery_redlock.core import client_of, watchdog
from celery_redlock.core.lease import holding_of
from celery_redlock.core.watchdog import Watchdog, process_watchdog
from tests.support.cases import first_of
from tests.support.nodes import Nodes, ServerNodes
from tests.support.patching import channel_type, fail_first
from tests.support.pulse import Pulse, in_time
from tests.support.waiting import TIMEOUT, wait_until

BRIEF = 0.3


@dataclass
class Told:
    """What a lease's callback was told, and when on the lease's clock."""

    leases: list[Lease] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def __call__(self, lease: Lease) -> None:
        self.times.append(holding_of(lease).now())
        self.leases.append(lease)


def wait_for_more(lease: Lease) -> None:
    trust = holding_of(lease).valid_until
    wait_until(lambda: holding_of(lease).valid_until > trust or lease.lost)


def renewed(lease: Lease, times: int = 1) -> None:
    for _ in range(times):
        wait_for_more(lease)
    assert lease.lost is None


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


def test_a_failure_that_passes_is_no_loss(servers: ServerNodes) -> None:
    client = servers.connected(node_timeout=0.2)
    told = Told()
    with client.lock("key", ttl=6.0, wait=TIMEOUT, on_lost=told) as lease:
        renewed(lease)
        servers.pause(0, 1, 2)
        with pytest.raises(QuorumUnavailable):
            client.acquire("other")
        trust = holding_of(lease).valid_until
        wait_until(lambda: holding_of(lease).now() > trust - 3.5)
        servers.resume(0, 1, 2)
        renewed(lease)
        lease.check()
    assert told.leases == []


@pytest.mark.parametrize("how", ["stopped", "partitioned"])
def test_a_loss_is_told_once_and_before_the_trust_ends(
    proxied: ServerNodes, pulse: Pulse, how: str
) -> None:
    client = proxied.connected(node_timeout=BRIEF)
    told = Told()
    with client.lock("key", ttl=5.0, wait=TIMEOUT, on_lost=told) as lease:
        renewed(lease)
        for node in range(3):
            if how == "stopped":
                proxied.pause(node)
            else:
                proxied.cluster.partition(node)
        wait_until(lambda: told.leases)
        assert told.leases == [lease]
        assert in_time(lease, told.times[0], pulse)
        assert lease.lost == "no quorum of nodes extended it in time"
        for node in range(3):
            proxied.resume(node)
            proxied.cluster.heal(node)
        with pytest.raises(LeaseLost, match="not valid: no quorum"):
            lease.check()
    assert len(told.leases) == 1
    proxied.wait_free("key")


def test_a_loss_is_in_time_for_each_of_many_leases(proxied: ServerNodes, pulse: Pulse) -> None:
    client = proxied.connected(node_timeout=BRIEF)
    told = Told()
    for number in range(250):
        lease = client.acquire(f"key-{number}", ttl=5.0, wait=5.0)
        client.watch(lease, on_lost=told)
    renewed(lease)
    for node in range(3):
        proxied.cluster.partition(node)
    wait_until(lambda: len(told.leases) == 250)
    assert all(
        in_time(lease, time, pulse) for time, lease in zip(told.times, told.leases, strict=True)
    )


def test_a_lease_that_a_quorum_no_longer_has_is_lost_at_the_next_renewal(nodes: Nodes) -> None:
    client = nodes.connected()
    told = Told()
    lease = nodes.lease_of(client, ttl=5.0)
    nodes.hold("key", "somebody", [0, 1, 2])
    client.watch(lease, on_lost=told)
    wait_until(lambda: told.leases)
    assert lease.lost == "a quorum of nodes no longer has it"


def test_max_hold_ends_the_renewal(nodes: Nodes, client: Redlock) -> None:
    told = Told()
    with client.lock("key", ttl=30.0, on_lost=told, max_hold=0.3) as lease:
        wait_until(lambda: told.leases)
        assert lease.lost == "it was held for as long as max_hold allows"
        assert not lease.is_valid
        assert client_of(client)._leases == {lease}
    nodes.wait_free("key")


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


def test_release_while_a_renewal_is_under_way_leaves_a_minimum_hold_as_it_is(
    proxied: ServerNodes,
) -> None:
    client = proxied.connected(node_timeout=2.0)
    lease = proxied.lease_of(client, ttl=60.0, at_least_for=10.0)
    client.watch(lease)
    for node in range(5):
        proxied.cluster.delay(node, 0.5, only="requests")
    watch = process_watchdog()._watches[holding_of(lease)]
    with process_watchdog()._lock:
        watch.extend_at = 0.0
        dog = process_watchdog()
        dog._push(dog._heap, watch.due, watch)
    process_watchdog()._thread.wakeup.wake()  # type: ignore[union-attr]
    wait_until(lambda: process_watchdog()._extending, interval=0.001)
    assert lease.release()
    for node in range(5):
        proxied.cluster.heal(node)
    assert client.acquire("other", wait=5.0).release()
    wait_until(lambda: all(proxied.left(node, "key") <= 10 for node in range(5)))


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


def test_a_callback_that_raises_does_not_stop_the_watchdog(nodes: Nodes) -> None:
    def explode(_: Lease) -> None:
        raise ZeroDivisionError

    client = nodes.connected()
    with client.lock("key", ttl=3.0) as lease:
        doomed = client.acquire("doomed", ttl=3.0)
        client.watch(doomed, on_lost=explode, max_hold=0.1)
        wait_until(lambda: doomed.lost)
        renewed(lease, 2)


def test_a_callback_may_use_and_close_the_client(nodes: Nodes, client: Redlock) -> None:
    done: list[bool] = []

    def clean_up(lease: Lease) -> None:
        lease.release()
        client.acquire("from the callback").release()
        client.close()
        done.append(process_watchdog().is_current_thread())

    lease = client.acquire("key", ttl=30.0)
    client.watch(lease, on_lost=clean_up, max_hold=0.1)
    wait_until(lambda: done)
    assert done == [True]
    wait_until(lambda: process_watchdog()._thread is None)
    nodes.wait_free("key")


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


def test_a_lease_found_lost_by_somebody_else_is_told_about_too(nodes: Nodes) -> None:
    client = nodes.connected()
    told = Told()
    lease = client.acquire("key", ttl=0.4, wait=TIMEOUT)
    holding_of(lease).on_lost = partial(told, lease)
    wait_until(lambda: lease.lost)
    wait_until(lambda: lease.lost)
    assert told.leases == [lease]
