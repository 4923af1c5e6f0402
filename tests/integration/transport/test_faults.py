"""Any minority of nodes may stop, refuse, vanish or talk garbage; a majority that does is named."""

from __future__ import annotations

import errno
import select

import pytest

from celery_redlock import LeaseLost, QuorumUnavailable
from celery_redlock.core import arm_nodes, client_of, probe_nodes
from celery_redlock.core.lease import holding_of
from celery_redlock.protocol.votes import Failed
from celery_redlock.transport import clock
from celery_redlock.transport.redis import channel, framing
from tests.support.breaking import BREAKS, break_nodes, lie, repair_nodes
from tests.support.cases import first_of
from tests.support.nodes import ServerNodes
from tests.support.patching import fail_first, failing, follow
from tests.support.pulse import Pulse, in_time
from tests.support.waiting import TIMEOUT, wait_until

BRIEF = 0.3

SAYS = {
    "stopped": "no answer within 0.3 s",
    "refusing": "closed the connection|ConnectionError|ConnectionResetError|BrokenPipeError",
    "partitioned": "no answer within 0.3 s",
    "talking garbage": "garbage|another command|to no command|InvalidResponse|Protocol",
    "lying": "answered garbage: it announces 2147483647 elements",
    "killed": "closed the connection|ConnectionError|ConnectionResetError|BrokenPipeError",
}


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize("count", first_of([2, 1]))
def test_with_a_minority_of_broken_nodes_locks_work(
    proxied: ServerNodes, how: str, count: int
) -> None:
    client = proxied.connected(node_timeout=2.0)
    before = client.acquire("held before")
    proxied.wait_held(before)
    break_nodes(proxied.cluster, how, count)
    before.extend()
    for _ in range(20):
        lease = client.acquire("key", wait=10.0)
        lease.extend()
        assert lease.release()
    assert before.release()
    repair_nodes(proxied.cluster, count)
    # A node that reset its connections hears of the release when there is a new one.
    wait_until(
        lambda: (
            client.acquire("other", wait=10.0).release()
            and not any(proxied.owners("key") + proxied.owners("held before"))
        )
    )


@pytest.mark.parametrize("how", BREAKS)
def test_a_majority_of_broken_nodes_is_named_with_the_reasons(
    proxied: ServerNodes, how: str
) -> None:
    client = proxied.connected(node_timeout=BRIEF)
    break_nodes(proxied.cluster, how, 3)
    for _ in range(3):
        with pytest.raises(QuorumUnavailable, match="needs 3 of 5 nodes") as failed:
            client.acquire("key")
        assert set(client.node_names[:3]) <= set(failed.value.nodes)
        for name in client.node_names[:3]:
            assert name in str(failed.value)
    # The first answers say what the node did, later ones what connecting to it said.
    repair_nodes(proxied.cluster, 3)
    proxied.cluster.arm()
    wait_until(lambda: client.acquire("other", wait=10.0).release())
    proxied.wait_free("key")


@pytest.mark.parametrize("how", BREAKS)
def test_the_first_failure_says_what_the_nodes_did(proxied: ServerNodes, how: str) -> None:
    client = proxied.connected(node_timeout=BRIEF)
    break_nodes(proxied.cluster, how, 3)
    with pytest.raises(QuorumUnavailable, match=SAYS[how]):
        client.acquire("key")


@pytest.mark.parametrize("how", first_of(BREAKS))
def test_a_lease_without_a_majority_is_lost_in_time_and_stays_lost(
    proxied: ServerNodes, how: str
) -> None:
    client = proxied.connected(node_timeout=BRIEF)
    told: list[float] = []
    with (
        Pulse() as pulse,
        client.lock(
            "key", ttl=5.0, wait=TIMEOUT, on_lost=lambda lease: told.append(holding_of(lease).now())
        ) as lease,
    ):
        break_nodes(proxied.cluster, how, 3)
        wait_until(lambda: told)
        assert in_time(lease, told[0], pulse)
        assert not lease.is_valid
        repair_nodes(proxied.cluster, 3)
        with pytest.raises(LeaseLost):
            lease.check()
    proxied.wait_free("key")
    assert len(told) == 1


def test_one_lying_node_takes_no_lease_away_from_the_others(proxied: ServerNodes) -> None:
    client = proxied.connected()
    with client.lock("key", ttl=3.0, wait=TIMEOUT) as lease:
        lie(proxied.cluster, 0)
        # Whoever connects to it anew is lied to as well, and so is who arms or probes it.
        trust = holding_of(lease).valid_until
        for _ in range(10):
            assert client.acquire("other", wait=10.0).release()
        named = [probe.problem or "" for probe in probe_nodes([proxied.urls[0]])]
        named += [node.detail for node in arm_nodes([proxied.urls[0]])]
        assert ["it announces 2147483647 elements" in text for text in named] == [True, True]
        wait_until(lambda: holding_of(lease).valid_until > trust)
        lease.check()
    proxied.cluster.heal(0)
    proxied.wait_free("key")


def test_slow_nodes_beyond_the_timeout_count_as_failed_and_their_late_answers_for_nothing(
    proxied: ServerNodes,
) -> None:
    client = proxied.connected(node_timeout=BRIEF)
    for node in range(3):
        proxied.cluster.delay(node, BRIEF, only="replies")
        proxied.cluster.delay(node, 2 * BRIEF, only="requests")
    with pytest.raises(QuorumUnavailable):
        client.acquire("key")
    for node in range(3):
        proxied.cluster.heal(node)
    wait_until(lambda: client.acquire("other", wait=10.0).release())
    proxied.wait_free("key")


def test_a_release_reaches_a_node_that_is_back_without_a_further_call(proxied: ServerNodes) -> None:
    lease = proxied.connected().acquire("key", ttl=60)
    proxied.wait_held(lease)
    for node in range(3):
        proxied.cluster.refuse(node)
    assert not lease.release()
    for node in (1, 2):
        proxied.cluster.heal(node)
    wait_until(lambda: proxied.owners("key") == [lease.owner, None, None, None, None])
    proxied.cluster.heal(0)


def test_a_release_reaches_a_node_that_is_back_after_an_error_in_its_delivery(
    proxied: ServerNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = [OSError(errno.EMFILE, "Too many open files")]
    fail_first(monkeypatch, channel.RedisChannel, "deliver_deferred", fails)
    lease = proxied.connected().acquire("key", ttl=60)
    proxied.wait_held(lease)
    for node in range(3):
        proxied.cluster.refuse(node)
    assert not lease.release()
    wait_until(lambda: not fails)
    for node in range(3):
        proxied.cluster.heal(node)
    proxied.wait_free("key")


def test_a_release_whose_connections_broke_behind_it_reaches_the_nodes_without_a_further_call(
    proxied: ServerNodes,
) -> None:
    lease = proxied.connected().acquire("key", ttl=60)
    proxied.wait_held(lease)
    for node in range(3):
        proxied.cluster.partition(node)
    lease.release(wait=False)
    for node in range(3):
        proxied.cluster.refuse(node)
        proxied.cluster.heal(node)
    proxied.wait_free("key")


def test_nodes_to_which_a_connection_takes_too_long_are_named_as_silent(
    proxied: ServerNodes,
) -> None:
    client = proxied.connected(node_timeout=BRIEF)
    for node in range(3):
        # Each step of the attempt gets its answer in time, and all of them together do not.
        proxied.cluster.delay(node, BRIEF / 2, only="replies")
    used = client_of(client).transport.checkout()
    votes = proxied.attempt(client, "key").round.votes[:3]
    client_of(client).transport.checkin(used)
    assert [vote.reason for vote in votes if isinstance(vote, Failed)] == [
        "no answer within 0.3 s while connecting"
    ] * 3


def test_clients_that_start_while_a_minority_is_gone_work_and_take_it_in_later(
    proxied: ServerNodes,
) -> None:
    proxied.cluster.partition(0)
    proxied.cluster.refuse(1)
    client = proxied.client(node_timeout=2.0)
    assert client.acquire("key").release()
    proxied.cluster.heal(0)
    proxied.cluster.heal(1)
    proxied.connect(client)


def test_a_client_that_starts_without_a_majority_says_so_and_recovers(proxied: ServerNodes) -> None:
    for node in range(3):
        proxied.cluster.refuse(node)
    client = proxied.client()
    with pytest.raises(QuorumUnavailable, match=r"ConnectionError|closed|reset") as failed:
        client.acquire("key")
    assert set(client.node_names[:3]) <= set(failed.value.nodes)
    for node in range(3):
        proxied.cluster.heal(node)
    assert client.acquire("key", wait=TIMEOUT).release()


@pytest.mark.parametrize("bytes_at_once", [65536, 8])
def test_replies_that_came_while_the_process_stood_still_count(
    proxied: ServerNodes, monkeypatch: pytest.MonkeyPatch, bytes_at_once: int
) -> None:
    """The process sends, and gets to run again when its timeout is over."""
    client = proxied.connected(node_timeout=BRIEF)
    stood_still = 0.0
    exchanges = set()
    is_awaited = channel.RedisChannel._is_awaited

    def stand_still_and_ask(self: channel.RedisChannel) -> bool:
        nonlocal stood_still
        if self._number not in exchanges:
            exchanges.add(self._number)
            sockets = {one.fd for one in self._by_node if one is not None}
            wait_until(lambda: set(select.select(sockets, (), (), 0)[0]) == sockets)
            stood_still += 10 * BRIEF
        return bool(is_awaited.__get__(self))

    monkeypatch.setattr(framing, "_RECEIVE_SIZE", bytes_at_once)
    monkeypatch.setattr(channel, "clock", lambda: clock.now() + stood_still)
    monkeypatch.setattr(channel.RedisChannel, "_is_awaited", property(stand_still_and_ask))
    lease = client.acquire("key", ttl=60)
    lease.extend()
    assert lease.release()
    assert len(exchanges) == 3


def test_nobody_waits_beyond_the_end_of_a_lease_and_no_node_is_blamed_for_that(
    proxied: ServerNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = proxied.connected(node_timeout=BRIEF)
    lease = client.acquire("key", ttl=60)
    stood_still, waits = 0.0, []
    receive = channel.RedisChannel._receive_replies

    def stand_still() -> None:
        nonlocal stood_still
        stood_still += 70

    def note_and_receive(self: channel.RedisChannel, remaining: float) -> bool:
        waits.append(remaining)
        return receive(self, remaining)

    for node in range(5):
        proxied.pause(node)
    monkeypatch.setattr(channel, "clock", lambda: clock.now() + stood_still)
    follow(monkeypatch, channel.RedisChannel, "_send_batch", stand_still)
    monkeypatch.setattr(channel.RedisChannel, "_receive_replies", note_and_receive)
    with pytest.raises(QuorumUnavailable):
        lease.extend()
    assert set(waits) == {0.0}
    assert failing(client) == []
