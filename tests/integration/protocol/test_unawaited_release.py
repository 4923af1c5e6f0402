"""A release that is not waited for does what an awaited one does, and its verdict comes later."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_redlock import Redlock, observe
from celery_redlock.core import client_of
from celery_redlock.core.instrumentation import Details, ReleaseDetails
from celery_redlock.core.lease import holding_of
from tests.support import forked
from tests.support.nodes import WARM_UP, Nodes, ServerNodes
from tests.support.waiting import wait_until

#: Seconds for which an awaited exchange with silent nodes would wait.
PATIENT = 50.0

#: Seconds for which requests to a node are under way.
FAR = 1.0

LEAVE = """
import os, signal, sys
from celery_redlock import Redlock

client = Redlock(sys.argv[1].split(","), max_ttl=600.0)
lease = client.acquire("key", ttl=600.0, wait=5.0)
assert lease.release(wait=False)
os.write(1, b"released")
{end}
"""


@pytest.fixture
def verdicts() -> Iterator[dict[str, bool]]:
    """Whether each lease was held to its release, by its key."""
    seen: dict[str, bool] = {}

    def receive(details: Details) -> None:
        if isinstance(details, ReleaseDetails) and not details.keys[0].startswith(WARM_UP):
            assert details.keys[0] not in seen
            seen[details.keys[0]] = details.held

    stop = observe(receive)
    yield seen
    stop()


def test_the_next_acquire_of_the_thread_finds_the_key_free(servers: ServerNodes) -> None:
    client = servers.connected()
    for _ in range(100):
        client.acquire("key", wait=0.0).release(wait=False)


def test_it_returns_while_no_node_replies_and_is_reported_when_they_do(
    servers: ServerNodes, verdicts: dict[str, bool]
) -> None:
    lease = servers.lease_of(servers.connected(node_timeout=PATIENT, ttl=PATIENT + 10))
    servers.pause(*range(5))

    assert lease.release(wait=False)

    assert verdicts == {}
    servers.resume(*range(5))
    wait_until(lambda: verdicts == {"key": True})


def test_a_lease_that_the_nodes_had_lost_is_reported_so(
    nodes: Nodes, verdicts: dict[str, bool]
) -> None:
    lease = nodes.connected().acquire("key")
    nodes.wait_held(lease)
    nodes.lose("key", (0, 1, 2))

    lease.release(wait=False)

    wait_until(lambda: verdicts == {"key": False})


def test_without_a_quorum_it_is_reported_as_not_confirmed(
    servers: ServerNodes, verdicts: dict[str, bool]
) -> None:
    lease = servers.connected().acquire("key")
    servers.wait_held(lease)
    servers.pause(0, 1, 2)

    assert lease.release(wait=False)

    wait_until(lambda: verdicts == {"key": False})
    assert holding_of(lease).release_is_unconfirmed


@pytest.mark.parametrize("lost", [0, 1])
def test_late_votes_count_for_their_own_lease_alone(
    servers: ServerNodes, client: Redlock, verdicts: dict[str, bool], lost: int
) -> None:
    first, second = client.acquire("first"), client.acquire("second")
    servers.wait_held(first)
    servers.wait_held(second)
    for node in range(5):
        servers.forget(node, ("first", "second")[lost])

    first.release(wait=False)

    assert second.release() is (lost != 1)
    expected = {"first": lost != 0, "second": lost != 1}
    wait_until(lambda: verdicts == expected, message=lambda: str(verdicts))


def test_it_does_not_overtake_its_own_acquire(proxied: ServerNodes) -> None:
    client = proxied.connected(max_ttl=600.0)
    transport = client_of(client).transport
    first = transport.checkout()
    proxied.connect(client)  # on a second channel
    transport.checkin(first)
    proxied.cluster.delay(4, FAR, only="requests")
    lease = client.acquire("key", ttl=600.0)
    proxied.cluster.delay(4, 0.0)
    assert transport.checkout() is first

    lease.release(wait=False)

    transport.checkin(first)
    proxied.wait_held(client.acquire("behind"), [4])
    assert proxied.owners("key") == [None] * 5


def test_the_votes_of_nodes_that_it_had_to_connect_to_count(
    proxied: ServerNodes, verdicts: dict[str, bool]
) -> None:
    client = proxied.connected()
    lost, held = (1, 2), (3, 4)
    for node in lost:
        proxied.cluster.delay(node, FAR)
    lease = client.acquire("key")  # granted by the others
    for node in lost:
        proxied.cluster.heal(node)
    proxied.wait_held(lease)
    proxied.lose("key", lost)
    for node in held:
        proxied.cluster.delay(node, FAR)
    used = client_of(client).transport.checkout()

    lease.release(wait=False)  # on a channel that connects to three nodes at once

    client_of(client).transport.checkin(used)
    for node in held:
        proxied.cluster.heal(node)
    assert wait_until(lambda: verdicts) == {"key": True}


def test_closing_the_client_reports_it_first(
    servers: ServerNodes, client: Redlock, verdicts: dict[str, bool]
) -> None:
    lease = client.acquire("key")
    lease.release(wait=False)

    client.close()

    assert verdicts == {"key": True}


@pytest.mark.parametrize(
    "end", ["os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"], ids=["exit", "kill"]
)
def test_a_process_that_ends_at_once_has_released(servers: ServerNodes, end: str) -> None:
    nodes = ",".join(servers.urls)
    ended = forked.run("-c", LEAVE.format(end=end), nodes, check=False)
    assert ended.stdout == "released"
    servers.wait_free("key")


def test_releases_of_many_threads_are_each_reported_once(
    servers: ServerNodes, client: Redlock, verdicts: dict[str, bool]
) -> None:

    def hold(key: str) -> None:
        client.acquire(key, wait=5.0).release(wait=False)

    keys = [f"key-{number}" for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(hold, keys))

    wait_until(lambda: verdicts == dict.fromkeys(keys, True), message=lambda: str(verdicts))
