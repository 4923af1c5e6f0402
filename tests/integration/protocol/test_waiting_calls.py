"""A call that waits for its lock is woken by the release."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tenacity import Retrying, stop_after_attempt, wait_fixed

from celery_redlock import (
    AsyncRedlock,
    ConfigurationError,
    LockContended,
    QuorumUnavailable,
    Redlock,
)
from celery_redlock.core import Lease, client_of
from celery_redlock.protocol.timing import quorum
from tests.support.cases import first_of
from tests.support.greenlets import PATCH, run_with_greenlets
from tests.support.nodes import CALM, Nodes, ServerNodes
from tests.support.tls import with_tls
from tests.support.waiting import TIMEOUT, WHEN_WOKEN, wait_until

Ask = Callable[[Nodes], Future[Any]]


def in_a_thread(nodes: Nodes) -> Future[Any]:
    """Wait for the lock in a thread."""
    client = nodes.connected()
    done: Future[Any] = Future()

    def wait() -> None:
        with client.lock("key", wait=TIMEOUT, retry=WHEN_WOKEN) as lease:
            done.set_result(lease.fencing_token)

    threading.Thread(target=wait, daemon=True).start()
    return done


def in_an_event_loop(nodes: Nodes) -> Future[Any]:
    """Wait for the lock in a coroutine."""
    done: Future[Any] = Future()

    async def wait() -> None:
        async with (
            AsyncRedlock(nodes.urls, node_timeout=CALM) as redlock,
            redlock.lock("key", wait=TIMEOUT, retry=WHEN_WOKEN) as lease,
        ):
            done.set_result(lease.fencing_token)

    threading.Thread(target=lambda: asyncio.run(wait()), daemon=True).start()
    return done


@pytest.fixture(params=[in_a_thread, in_an_event_loop], ids=["thread", "event loop"])
def ask(request: pytest.FixtureRequest) -> Ask:
    found: Ask = request.param
    return found


def wait_until_remembered(nodes: Nodes, calls: int = 1) -> None:
    """Wait until a quorum of nodes remembers each of those who wait for the key."""

    def are_remembered() -> bool:
        seen = Counter(name for node in range(len(nodes)) for name in nodes.waiting(node, "key"))
        return len(seen) == calls and all(count >= quorum(len(nodes)) for count in seen.values())

    wait_until(are_remembered)


@pytest.mark.parametrize("wait", [True, False])
def test_a_release_wakes_a_call_that_waits(nodes: Nodes, ask: Ask, *, wait: bool) -> None:
    lease = nodes.connected().acquire("key", ttl=60.0)
    woken = ask(nodes)
    wait_until_remembered(nodes)
    lease.release(wait=wait)
    assert woken.result(TIMEOUT) > lease.fencing_token


def test_a_lock_that_is_taken_away_wakes_it_too(nodes: Nodes, client: Redlock) -> None:
    client.acquire("key", ttl=60.0)
    woken = in_a_thread(nodes)
    wait_until_remembered(nodes)
    assert client.force_release("key")
    assert woken.result(TIMEOUT)


def test_a_minority_of_dead_nodes_keeps_nobody_asleep(nodes: Nodes, ask: Ask) -> None:
    lease = nodes.connected().acquire("key", ttl=60.0)
    woken = ask(nodes)
    wait_until_remembered(nodes)
    nodes.kill(0, 1)
    lease.release()
    assert woken.result(TIMEOUT)


def test_calls_that_wait_are_woken_one_after_the_other(nodes: Nodes) -> None:
    lease = nodes.connected().acquire("key", ttl=60.0)
    waiting = [in_a_thread(nodes) for _ in range(4)]
    wait_until_remembered(nodes, len(waiting))
    lease.release()
    tokens = {one.result(TIMEOUT) for one in waiting}
    assert len(tokens) == len(waiting)


def test_a_call_that_gives_up_is_forgotten(nodes: Nodes, client: Redlock) -> None:
    client.acquire("key", ttl=60.0)
    with pytest.raises(LockContended):
        nodes.connected().acquire("key", wait=1.1)
    wait_until_remembered(nodes, 0)


def in_a_pause(monkeypatch: pytest.MonkeyPatch, client: Redlock, act: Callable[[], None]) -> None:
    """Do something in each pause of the client's waiting calls, and end it."""
    transport = client_of(client).transport
    monkeypatch.setattr(transport, "wait", lambda call, seconds: act() or True)


def cancelled(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait() -> None:
        async with AsyncRedlock(nodes.urls, node_timeout=CALM) as redlock:
            waiting = asyncio.create_task(redlock.acquire("key", wait=None, retry=WHEN_WOKEN))
            await asyncio.to_thread(wait_until_remembered, nodes)
            waiting.cancel()
            await asyncio.wait([waiting])

    asyncio.run(wait())


def interrupted(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    client = nodes.connected()
    in_a_pause(monkeypatch, client, interrupt)
    with pytest.raises(KeyboardInterrupt):
        client.acquire("key", wait=None)


def ended_by_its_policy(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Retrying(stop=stop_after_attempt(2), wait=wait_fixed(0.1))
    with pytest.raises(LockContended):
        nodes.connected().acquire("key", wait=None, retry=policy)


def left_without_a_quorum(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    client, policy = nodes.connected(), Retrying(stop=stop_after_attempt(2), wait=wait_fixed(0.1))
    in_a_pause(monkeypatch, client, lambda: nodes.kill(0, 1, 2))
    with pytest.raises(QuorumUnavailable):
        client.acquire("key", wait=None, retry=policy)


def closed(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    client = nodes.connected()
    in_a_pause(monkeypatch, client, client.close)
    with pytest.raises(ConfigurationError):
        client.acquire("key", wait=None)


def closed_in_a_loop(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait() -> None:
        redlock = AsyncRedlock(nodes.urls, node_timeout=CALM)
        waiting = asyncio.create_task(redlock.acquire("key", wait=None, retry=WHEN_WOKEN))
        await asyncio.to_thread(wait_until_remembered, nodes)
        await redlock.aclose()
        with pytest.raises(ConfigurationError):
            await waiting

    asyncio.run(wait())


@pytest.mark.parametrize(
    "end",
    [
        cancelled,
        interrupted,
        ended_by_its_policy,
        left_without_a_quorum,
        closed,
        closed_in_a_loop,
    ],
)
def test_nodes_forget_a_call_that_ends_while_it_waits(
    nodes: Nodes,
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[Nodes, pytest.MonkeyPatch], None],
) -> None:
    nodes.connected().acquire("key", ttl=60.0)
    end(nodes, monkeypatch)
    wait_until(lambda: not nodes.waiting(3, "key") + nodes.waiting(4, "key"))


def test_a_call_that_waits_for_a_moment_only_does_not_listen(servers: ServerNodes) -> None:
    servers.connected().acquire("key", ttl=60.0)
    with pytest.raises(LockContended):
        servers.connected().acquire("key", wait=0.05)
    assert subscribers(servers) == []


def test_tries_that_a_wake_up_brings_do_not_count_for_the_policy(nodes: Nodes) -> None:
    nodes.connected().acquire("key", ttl=60.0)
    made: list[int] = []
    policy = Retrying(
        stop=stop_after_attempt(3), wait=wait_fixed(0.1), after=lambda _: made.append(1)
    )
    with pytest.raises(LockContended):
        nodes.connected().acquire("key", wait=TIMEOUT, retry=policy)
    assert len(made) == 3


def test_a_call_that_does_not_wait_is_not_remembered(nodes: Nodes, client: Redlock) -> None:
    client.acquire("key", ttl=60.0)
    with pytest.raises(LockContended):
        client.acquire("key")
    assert nodes.waiting(0, "key") == []


def test_a_client_that_is_closed_wakes_its_calls(nodes: Nodes) -> None:
    nodes.connected().acquire("key", ttl=60.0)
    client = nodes.connected()
    ended = threading.Event()

    def wait() -> None:
        with contextlib.suppress(Exception):
            client.acquire("key", wait=TIMEOUT, retry=WHEN_WOKEN)
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    wait_until_remembered(nodes)
    client.close()
    assert ended.wait(TIMEOUT)


# Connections.


def subscribers(nodes: ServerNodes, node: int = 0) -> list[Any]:
    """Return the connections that listen to a node."""
    found: list[Any] = nodes.cluster.client(node).client_list(_type="pubsub")
    return found


@pytest.fixture
def waiting_calls(servers: ServerNodes) -> Iterator[tuple[Lease, list[Future[int]]]]:
    """A held lock, and many calls of one client that wait for it."""
    lease = servers.connected().acquire("key", ttl=60.0)
    client: Redlock = servers.connected()

    def wait() -> int:
        with client.lock("key", wait=TIMEOUT, retry=WHEN_WOKEN) as held:
            return held.fencing_token

    with ThreadPoolExecutor(20) as pool:
        calls = [pool.submit(wait) for _ in range(20)]
        wait_until_remembered(servers, len(calls))
        yield lease, calls
        lease.release()


@pytest.mark.usefixtures("waiting_calls")
def test_all_calls_of_a_client_listen_on_one_connection_to_each_node(servers: ServerNodes) -> None:
    wait_until(lambda: [len(subscribers(servers, node)) for node in range(5)] == [1] * 5)


def test_a_client_that_waits_for_nothing_does_not_listen(servers: ServerNodes) -> None:
    servers.connected().acquire("key").release()
    assert subscribers(servers) == []


def test_a_connection_that_breaks_is_made_again(
    servers: ServerNodes, waiting_calls: tuple[Lease, list[Future[int]]]
) -> None:
    lease, calls = waiting_calls
    wait_until(lambda: all(subscribers(servers, node) for node in range(5)))
    before = {node: subscribers(servers, node)[0]["id"] for node in range(5)}
    for node in range(5):
        servers.cluster.client(node).client_kill_filter(_type="pubsub")
    wait_until(
        lambda: all(
            (now := subscribers(servers, node)) and now[0]["id"] != before[node]
            for node in range(5)
        )
    )
    wait_until_remembered(servers, len(calls))
    lease.release()
    assert len({call.result(TIMEOUT) for call in calls}) == len(calls)


def test_closing_a_client_ends_its_connections(servers: ServerNodes, client: Redlock) -> None:
    lease = servers.connected().acquire("key", ttl=60.0)
    with pytest.raises(LockContended):
        client.acquire("key", wait=1.1)
    wait_until(lambda: bool(subscribers(servers)))
    client.close()
    wait_until(lambda: not subscribers(servers))
    lease.release()


GREENLETS = """
import sys, time
from celery_redlock import Redlock
from tests.support.waiting import WHEN_WOKEN
client = Redlock(sys.argv[1:], node_timeout=5.0)
done = []
def wait():
    with client.lock("key", wait=60.0, retry=WHEN_WOKEN):
        done.append(1)
held = client.acquire("key", ttl=30.0, wait=20.0)
for _ in range(5):
    spawn(wait)
time.sleep(0.5)
assert not done
held.release()
while len(done) < 5:
    time.sleep(0.01)
client.close()
print("all were woken")
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", first_of(PATCH))
def test_a_release_wakes_greenlets(servers: ServerNodes, kind: str) -> None:
    assert run_with_greenlets(kind, GREENLETS, *servers.urls) == "all were woken\n"


def test_a_node_whose_user_may_not_listen_is_logged_once(
    servers: ServerNodes, caplog: pytest.LogCaptureFixture
) -> None:
    for node in range(5):
        rules = ("on", "nopass", "allkeys", "allcommands", "resetchannels")
        servers.cluster.client(node).execute_command("ACL", "SETUSER", "deaf", *rules)
    urls = [url.replace("redis://", "redis://deaf:any@") for url in servers.urls]
    servers.connected().acquire("key", ttl=60.0)

    def warned() -> list[str]:
        return [message for message in caplog.messages if "cannot publish wake-ups" in message]

    with caplog.at_level(logging.WARNING), Redlock(urls, node_timeout=CALM) as client:
        for _ in range(2):
            with pytest.raises(LockContended):
                client.acquire("key", wait=1.0)
            wait_until(lambda: len(warned()) == 5, message=lambda: f"warned: {caplog.messages}")
    assert all("NOPERM" in message or "permission" in message for message in warned())


def test_a_release_wakes_over_tls(servers: ServerNodes, tmp_path: Path) -> None:
    with (
        with_tls(servers.urls, tmp_path) as urls,
        Redlock(urls, node_timeout=CALM) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        lease = client.acquire("key", ttl=60.0, wait=TIMEOUT)
        call = pool.submit(client.acquire, "key", wait=TIMEOUT, retry=WHEN_WOKEN)
        wait_until_remembered(servers)
        lease.release()
        assert call.result(TIMEOUT).release()
