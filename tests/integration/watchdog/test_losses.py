"""The watchdog says in time when a lease is lost, and says it once."""

from __future__ import annotations

from functools import partial

import pytest

from celery_redlock import Lease, LeaseLost, QuorumUnavailable, Redlock
from celery_redlock.core import client_of
from celery_redlock.core.lease import holding_of
from celery_redlock.core.watchdog import process_watchdog
from tests.integration.watchdog.watching import Told, extend_now, renewed
from tests.support.nodes import Nodes, ServerNodes
from tests.support.patching import channel_type, follow
from tests.support.pulse import Pulse, in_time
from tests.support.waiting import TIMEOUT, wait_until

BRIEF = 0.3


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


def test_a_lease_found_lost_by_somebody_else_is_told_about_too(nodes: Nodes) -> None:
    client = nodes.connected()
    told = Told()
    lease = client.acquire("key", ttl=0.4, wait=TIMEOUT)
    holding_of(lease).on_lost = partial(told, lease)
    wait_until(lambda: lease.lost)
    wait_until(lambda: lease.lost)
    assert told.leases == [lease]


def test_a_callback_that_raises_does_not_stop_the_watchdog(nodes: Nodes) -> None:
    def explode(_: Lease) -> None:
        raise ZeroDivisionError

    client = nodes.connected()
    with client.lock("key", ttl=3.0) as lease:
        doomed = client.acquire("doomed", ttl=3.0)
        client.watch(doomed, on_lost=explode, max_hold=0.1)
        wait_until(lambda: doomed.lost)
        renewed(lease, 2)


def test_a_watch_that_a_callback_has_replaced_reports_no_loss(
    nodes: Nodes, client: Redlock
) -> None:
    leases = [client.acquire(key, ttl=6.0) for key in ("first", "second")]

    def watch_again(lost: Lease) -> None:
        for lease in leases:
            if lease is not lost:
                client.watch(lease)

    for lease in leases:
        client.watch(lease, on_lost=watch_again)
    extend_now(*leases, hold_is_over=True)
    wait_until(lambda: any(lease.lost for lease in leases))
    kept = leases[0] if leases[1].lost else leases[1]
    renewed(kept)


def test_a_lease_that_nobody_watches_any_more_is_not_reported(
    nodes: Nodes, client: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    lease, other = (client.acquire(key, ttl=60.0) for key in ("key", "other"))

    def unwatch_and_let_it_expire() -> None:
        client.unwatch(lease)
        holding_of(lease).valid_until = 0.0

    for watched in (lease, other):
        client.watch(watched, on_lost=told)
    follow(monkeypatch, channel_type(client), "connect", then=unwatch_and_let_it_expire)
    extend_now(lease, other)
    renewed(other)
    assert told.leases == []


def test_a_callback_that_takes_its_time_delays_no_later_extension_of_others(
    nodes: Nodes, client: Redlock
) -> None:
    lost, kept = (client.acquire(key, ttl=60.0) for key in ("lost", "kept"))
    called_at: list[float] = []

    def take_time(_: Lease) -> None:
        called_at.append(holding_of(kept).now())
        wait_until(lambda: holding_of(kept).now() > called_at[0] + 0.2)

    client.watch(lost, on_lost=take_time)
    client.watch(kept)
    nodes.lose("lost", range(5))
    extend_now(kept, lost)
    renewed(kept)
    watch = process_watchdog()._watches[holding_of(kept)]
    wait_until(lambda: called_at and watch.extend_at > 0)
    assert watch.extend_at <= called_at[0] + watch.period


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
