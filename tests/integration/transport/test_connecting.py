"""Every sort of address works, and a server that is not fit for locks is told about."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from celery_redlock import QuorumUnavailable, Redlock
from celery_redlock.core import arm_nodes, client_of, probe_nodes
from celery_redlock.core.failures import NO_REPLY
from celery_redlock.core.lease import holding_of
from celery_redlock.protocol.commands import Waiter, enqueue, forget_waiter
from celery_redlock.protocol.keys import Key, wait_queue_key
from celery_redlock.testing import LocalCluster
from celery_redlock.transport import borrowed, clock
from celery_redlock.transport.redis import connections
from celery_redlock.transport.redis.connector import Connector, warnings_about
from celery_redlock.transport.redis.transport import RedisTransport
from tests.support.nodes import CALM, ServerNodes
from tests.support.patching import follow
from tests.support.tls import with_tls
from tests.support.waiting import TIMEOUT, wait_until

PASSWORD = "p@ss:w/o#rd?"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, unix_socket=True) as started:
        yield started


@pytest.fixture
def nodes(cluster: LocalCluster) -> Iterator[ServerNodes]:
    cluster.reset()
    found = ServerNodes(cluster)
    yield found
    found.close()


def use(client: Redlock) -> None:
    for _ in range(3):
        lease = client.acquire("key", wait=TIMEOUT)
        lease.extend()
        assert lease.release()
    # Short enough to be renewed at once, long enough to last until then on a busy machine.
    with client.lock("key", ttl=CALM, wait=TIMEOUT) as lease:
        trust = holding_of(lease).valid_until
        wait_until(lambda: holding_of(lease).valid_until > trust)


def test_unix_sockets(nodes: ServerNodes) -> None:
    client = nodes.connected(nodes=nodes.cluster.unix_urls)
    use(client)
    assert all(name.startswith("unix:///") for name in client.node_names)


@pytest.mark.parametrize("protocol", [2, 3])
def test_both_protocol_versions(nodes: ServerNodes, protocol: int) -> None:
    use(nodes.connected(nodes=[f"{url}?protocol={protocol}" for url in nodes.urls]))


def test_a_node_is_told_the_library_that_its_url_names(nodes: ServerNodes) -> None:
    nodes.connected(nodes=[f"{url}?lib_name=mine" for url in nodes.urls])
    assert "mine" in {client.get("lib-name") for client in nodes.cluster.client(0).client_list()}


def test_resp3_pushes_between_answers_are_skipped(nodes: ServerNodes) -> None:
    client = nodes.connected(nodes=[f"{url}?protocol=3" for url in nodes.urls])
    lease = client.acquire("key")
    channel = client_of(client).transport.checkout()
    for connection in channel._by_node:  # type: ignore[attr-defined]
        wait_until(
            lambda connection=connection: channel._receive_replies(0.01) or not connection.pending
        )  # type: ignore[attr-defined,misc]
        # Every key that is touched is pushed to this connection from now on.
        connection._socket.sendall(
            b"*4\r\n$6\r\nCLIENT\r\n$8\r\nTRACKING\r\n$2\r\nON\r\n$5\r\nBCAST\r\n"
        )
        connection._socket.setblocking(True)
        assert connection._socket.recv(100).startswith(b"+OK")
        connection._socket.setblocking(False)
    client_of(client).transport.checkin(channel)
    lease.release()
    for _ in range(20):
        assert client.acquire("key").release()


def test_first_connections_have_their_whole_time_although_this_process_paused_meanwhile(
    nodes: ServerNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = 0.0

    def pause() -> None:
        nonlocal paused
        paused += 60.0

    monkeypatch.setattr(connections, "clock", lambda: clock.now() + paused)
    follow(monkeypatch, connections.Connections, "start_connect", pause)
    with borrowed(client_of(nodes.client(node_timeout=2.0)).transport) as channel:
        channel.connect()
        assert len(dict(channel._connections.made())) >= 2  # type: ignore[attr-defined]


def test_another_database(nodes: ServerNodes) -> None:
    client = nodes.client(nodes=[url.replace("/0", "/3") for url in nodes.urls], guard=False)
    use(client)


def test_tls_with_a_certificate_of_ones_own(nodes: ServerNodes, tmp_path: Path) -> None:
    with with_tls(nodes.urls, tmp_path) as urls:
        trusting = nodes.client(nodes=urls)
        use(trusting)
        # An answer that is larger than what one read takes.
        many = [f"key-{number}" for number in range(900)]
        with trusting.lock(many):
            doubting = nodes.client(nodes=[url.partition("?")[0] for url in urls])
            with pytest.raises(QuorumUnavailable, match=r"(?i)certificate"):
                doubting.acquire("key")
            trusting.acquire("key").release()
        trusting.close()
        doubting.close()


def test_tls_against_a_port_without_it_is_named(nodes: ServerNodes) -> None:
    url = nodes.urls[0].replace("redis://", "rediss://")
    (probe,) = probe_nodes([url], timeout=0.2)
    assert "write redis://" in str(probe.problem)


def test_a_plain_connection_to_a_tls_port_is_named(nodes: ServerNodes, tmp_path: Path) -> None:
    with with_tls(nodes.urls[:1], tmp_path) as (url,):
        plain = url.partition("?")[0].replace("rediss", "redis")
        (probe,) = probe_nodes([plain], timeout=CALM)
    assert "write rediss://" in str(probe.problem)


@pytest.fixture(scope="module")
def node_in_cluster_mode() -> Iterator[str]:
    with LocalCluster(1, armed=False, config={"cluster-enabled": "yes"}) as cluster:
        yield cluster.urls[0]


def test_a_client_names_a_node_in_cluster_mode_with_the_mend(node_in_cluster_mode: str) -> None:
    with (
        Redlock(node_in_cluster_mode, node_timeout=CALM) as client,
        pytest.raises(QuorumUnavailable, match="name independent masters without cluster mode"),
    ):
        client.acquire("key")


def test_a_node_in_cluster_mode_is_not_armed(node_in_cluster_mode: str) -> None:
    (result,) = arm_nodes(node_in_cluster_mode, force=True)
    assert result.state == "failed"
    assert "runs in cluster mode" in result.detail


@pytest.fixture
def silent_nodes() -> Iterator[list[str]]:
    """Nodes that accept connections and never answer."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        yield [f"redis://127.0.0.1:{one.getsockname()[1]}/0" for one in listeners]


def test_nodes_that_accept_and_never_answer_cost_one_attempt_of_the_node_timeout(
    silent_nodes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkin, attempts, here = RedisTransport.checkin, [], threading.get_ident()

    def counted(transport: RedisTransport, channel: Any) -> None:
        # The watchdog delivers deferred releases meanwhile, on channels of its own.
        if threading.get_ident() == here:
            attempts.append(channel)
        checkin(transport, channel)

    monkeypatch.setattr(RedisTransport, "checkin", counted)
    with Redlock(silent_nodes, node_timeout=0.5) as client:
        for number in (1, 2):
            with pytest.raises(QuorumUnavailable) as silence:
                client_of(client).reserve(
                    ["redlock:key"], ttl=60, grace=60, label="queued", retry_for=60.0
                )
            assert len(attempts) == number
            reasons = set(silence.value.nodes.values()) - {NO_REPLY}
            assert reasons == {"no answer within 0.5 s while connecting"}


def test_passwords_with_any_character() -> None:
    with LocalCluster(1, requirepass=PASSWORD) as cluster:
        url = cluster.urls[0]
        assert quote(PASSWORD, safe="") in url
        with Redlock(url) as client:
            use(client)
        wrong = url.replace(quote(PASSWORD, safe=""), "wr0ng")
        with Redlock(wrong) as client, pytest.raises(QuorumUnavailable) as refused:
            client.acquire("key")
        assert "wr0ng" not in str(refused.value)
        assert "invalid username-password pair" in str(refused.value)
        missing = url.replace(f":{quote(PASSWORD, safe='')}@", "")
        assert [(probe.lasting, probe.problem is None) for probe in probe_nodes([missing])] == [
            (True, False)
        ]
        for probe in probe_nodes([wrong]):
            assert probe.lasting
            assert "wr0ng" not in str(probe)


def test_scripts_that_a_server_forgot_are_said_again_in_full(nodes: ServerNodes) -> None:
    client = nodes.connected()
    lease = nodes.lease_of(client, "held")
    for node in range(3):
        nodes.cluster.client(node).script_flush()
    lease.extend()
    assert client.acquire("key").release()
    for node in range(3):
        nodes.cluster.client(node).script_flush()
    assert lease.release()
    # Whatever the third node answered late is read by the next attempt.
    wait_until(
        lambda: (
            client.acquire("other", wait=TIMEOUT).release()
            and not any(nodes.owners("held") + nodes.owners("key"))
        )
    )


def test_a_release_without_its_script_still_undoes_a_failed_attempt(nodes: ServerNodes) -> None:
    client = nodes.connected()
    nodes.hold("key", "somebody", [0, 1])
    for node in range(3):
        nodes.cluster.client(node).script_flush()
    assert not nodes.attempt(client, "key").is_granted
    # Whatever the third node answered late is read by the next attempt.
    wait_until(
        lambda: client.acquire("other", wait=TIMEOUT).release() and nodes.owner(2, "key") is None
    )


@pytest.mark.parametrize("order", ["remembered, forgotten", "forgotten, remembered"])
def test_a_script_said_again_in_full_undoes_nothing_that_came_later(
    nodes: ServerNodes, order: str
) -> None:
    """The first command is refused on each node, which forgot its script; the second one is not."""
    key = Key("redlock:key", "key")
    waiter = Waiter("waiter", 1, 60_000)
    commands = {
        "remembered": partial(enqueue, [(key.stored, waiter)]),
        "forgotten": partial(forget_waiter, [key], waiter),
    }
    first, second = (commands[name] for name in order.split(", "))
    with borrowed(client_of(nodes.connected()).transport) as channel:
        for command in (first(), second()):
            channel.send(command)
            wait_until(lambda: not pending(channel))
        for node in range(3):
            nodes.cluster.client(node).script_flush()
        channel.send(second())
        wait_until(lambda: not pending(channel))

        channel.send(first())
        channel.send(second())
        wait_until(lambda: not pending(channel))

    waiting = [nodes.cluster.client(node).zcard(wait_queue_key(key.stored)) for node in range(3)]
    assert waiting == [int(order.endswith("remembered"))] * 3


def pending(channel: Any) -> bool:
    """Handle the replies that have come; return whether some are due."""
    channel.drain()
    return any(connection.pending for connection in channel._by_node)


@pytest.fixture
def twice(nodes: ServerNodes) -> list[str]:
    """Three addresses, of which the first two are of one server."""
    return [nodes.urls[0], nodes.urls[0].replace("127.0.0.1", "localhost"), nodes.urls[1]]


def test_one_server_named_by_two_addresses_has_one_vote(
    nodes: ServerNodes, twice: list[str]
) -> None:
    for _ in range(5):
        client = nodes.client(nodes=twice, guard=False)
        assert client.acquire("key", wait=TIMEOUT).release()
        nodes.kill(1)
        with pytest.raises(QuorumUnavailable, match="is the same server as"):
            client.acquire("key")
        client.close()
        nodes.restart(1)


def test_a_probe_finds_a_server_that_is_named_by_two_addresses(twice: list[str]) -> None:
    good, same, other = probe_nodes(twice)
    assert (good.problem, other.problem) == (None, None)
    assert same.lasting
    assert (same.problem or "").startswith(f"is the same server as {good.name}, ")


@pytest.mark.parametrize("force", [False, True])
def test_no_node_is_armed_where_one_server_has_two_addresses(
    nodes: ServerNodes, twice: list[str], force: bool
) -> None:
    nodes.flush(*range(len(nodes.urls)))
    answers = arm_nodes(twice, force=force)
    assert [answer.state for answer in answers] == ["missing", "failed", "missing"]
    assert answers[1].detail.startswith(f"is the same server as {answers[0].name}, ")


def test_a_replica_takes_no_locks_and_is_warned_about(
    nodes: ServerNodes, caplog: pytest.LogCaptureFixture
) -> None:
    nodes.cluster.client(0).replicaof("127.0.0.1", 1)
    nodes.cluster.client(1).replicaof("127.0.0.1", 1)
    client = nodes.client()
    with pytest.raises(QuorumUnavailable, match="READONLY"):
        client.acquire("key", wait=1.0)
    wait_until(lambda: caplog.text.count("is a slave, not a master, and takes no locks") == 2)


def test_a_node_that_keeps_failing_is_logged_once(
    nodes: ServerNodes, caplog: pytest.LogCaptureFixture
) -> None:
    nodes.kill(0)
    client = nodes.client()

    def is_logged() -> bool:
        assert client.acquire("key", wait=TIMEOUT).release()
        return f"Lock node {client.node_names[0]} fails: " in caplog.text

    wait_until(is_logged)
    for _ in range(20):
        assert client.acquire("key", wait=TIMEOUT).release()
    assert caplog.text.count(" fails: ") == 1


def test_a_policy_that_evicts_is_warned_about_once(
    nodes: ServerNodes, caplog: pytest.LogCaptureFixture
) -> None:
    nodes.cluster.client(0).config_set("maxmemory-policy", "allkeys-lru")
    try:
        client = nodes.connected()
        assert client.acquire("key").release()
    finally:
        nodes.cluster.client(0).config_set("maxmemory-policy", "noeviction")
    assert caplog.text.count("Set maxmemory-policy noeviction") == 1
    assert all(record.levelno == logging.WARNING for record in caplog.records)


@pytest.mark.parametrize("facts", [None, {}, {"run_id": "x"}, {"master_replid": "x"}])
def test_hidden_info_is_warned_about_with_the_mend(facts: dict[str, str] | None) -> None:
    assert [warning[-12:-1] for warning in warnings_about(facts)] == ["Grant +info"]


def test_a_master_that_keeps_everything_is_not_warned_about() -> None:
    facts = {
        "run_id": "x",
        "master_replid": "y",
        "role": "master",
        "maxmemory_policy": "noeviction",
    }
    assert warnings_about(facts) == []


def test_a_reservation_waits_for_connections_that_are_still_being_made(
    nodes: ServerNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_FIRST_CONNECT_WAIT", 0.02)  # node timeouts
    client = nodes.client()
    dial, reachable, attempts = Connector.connect, threading.Event(), []
    checkin = RedisTransport.checkin

    def late(*args: Any, **options: Any) -> Any:
        reachable.wait()
        return dial(*args, **options)

    def count(transport: RedisTransport, channel: Any) -> None:
        attempts.append(channel)
        reachable.set()
        checkin(transport, channel)

    monkeypatch.setattr(Connector, "connect", late)
    monkeypatch.setattr(RedisTransport, "checkin", count)
    # It would be a pity if the first tasks of a process that has just begun went without a lock.
    reserved = client_of(client).reserve(
        ["redlock:key"], ttl=60, grace=60, label="queued", retry_for=CALM
    )
    assert len(attempts) > 1
    wait_until(lambda: nodes.owners("key").count(reserved.reservation.owner) >= 2)


@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile"])
def test_a_file_of_a_url_that_is_not_there_is_named_and_lasting(
    redlock_cluster: LocalCluster, option: str
) -> None:
    url = redlock_cluster.urls[0].replace("redis://", "rediss://")
    (result,) = probe_nodes(f"{url}?{option}=/no/file.pem")
    assert result.lasting
    assert f"{option}=/no/file.pem" in (result.problem or "")


def test_a_burst_of_the_threads_of_a_web_server_uses_the_connections_of_the_last_one(
    nodes: ServerNodes,
) -> None:
    transport = client_of(nodes.client()).transport

    def burst() -> set[Any]:
        channels = [transport.checkout() for _ in range(64)]
        for channel in channels:
            transport.checkin(channel)
        return set(channels)

    assert burst() == burst()
