"""A paused key is given to nobody, its holders keep it, and the end of the pause is for waiters."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_redlock import Limit, LockContended, QuorumUnavailable, Rate, Redlock
from celery_redlock.core import Client, Reservation, client_of, pausing
from celery_redlock.protocol.commands import Waiter, pause, resume
from celery_redlock.protocol.keys import ANY_PAUSE, PAUSED, Key, pause_of, wake_channel
from celery_redlock.protocol.votes import Granted, KeyHolder, Quarantined, Refused, Vote
from tests.support.commands import acquire, limited, release
from tests.support.nodes import CALM, PREFIX, MemoryNodes, Nodes, ServerNodes
from tests.support.waiting import TIMEOUT, WHEN_WOKEN, wait_until

KEY = Key.of(PREFIX, "key")
PAUSE = pause_of(KEY.stored)
CHANNEL = wake_channel(PAUSE)
LONG = 60_000

FORMS = ["key", Limit("key", 2), Rate("key", 5, per=1.0)]


def refused(redlock: Redlock, key: str | Limit | Rate) -> LockContended:
    with pytest.raises(LockContended) as raised:
        redlock.acquire(key)
    return raised.value


def ask(nodes: Nodes, key: Key, *, name: str = "us", keep: int = LONG, since: int = 1) -> Vote:
    """Let a waiter try to acquire a key on the first node."""
    return nodes.run(0, acquire((key,), name, LONG, 0, 0, "", Waiter(name, since, keep)))


def put(nodes: Nodes, key: Key = KEY, by: str = "somebody", ms: int = LONG, node: int = 0) -> Vote:
    return nodes.run(node, pause(key, by, ms))


# What a client sees.


@pytest.mark.parametrize("key", FORMS)
def test_a_paused_key_is_given_to_nobody(nodes: Nodes, key: str | Limit | Rate) -> None:
    redlock = nodes.connected()
    redlock.pause("key", 60)
    error = refused(redlock, key)
    assert (error.key, error.holder, error.split) == ("key", PAUSED, False)


@pytest.mark.parametrize("key", FORMS)
def test_a_pause_may_be_named_by_any_form_of_the_key(nodes: Nodes, key: str | Limit | Rate) -> None:
    redlock = nodes.connected()
    redlock.pause(key, 60)
    assert refused(redlock, "key").holder == PAUSED


def test_the_error_says_for_how_long_and_how_to_end_it(nodes: Nodes, redlock: Redlock) -> None:
    redlock.pause("key", 1800)
    text = str(refused(redlock, "key"))
    assert "Lock 'key' is paused for 1,8" in text
    assert "celery-redlock resume 'key'" in text


def test_the_error_has_the_time_that_is_left(nodes: Nodes, redlock: Redlock) -> None:
    redlock.pause("key", 60)
    assert 0 < (refused(redlock, "key").expires_in or 0) <= 60


def test_other_keys_are_not_paused(nodes: Nodes, redlock: Redlock) -> None:
    redlock.pause("key", 60)
    with redlock.lock(["key2", "ke", Limit("key2", 3), Rate("other", 5, per=1)]):
        pass


def test_of_several_keys_the_paused_one_refuses_all(nodes: Nodes, redlock: Redlock) -> None:
    redlock.pause("key", 60)
    with pytest.raises(LockContended) as raised:
        redlock.acquire(["other", "key"])
    assert raised.value.key == "key"
    assert nodes.owners("other") == [None] * len(nodes)


def test_the_longest_of_several_pauses_is_named(nodes: Nodes, redlock: Redlock) -> None:
    for key, seconds in (("a", 60), ("b", 600), ("c", 6)):
        redlock.pause(key, seconds)
    with pytest.raises(LockContended) as raised:
        redlock.acquire(["a", "b", Limit("c", 2)])
    assert raised.value.key == "b"
    assert set(raised.value.keys) == {"a", "b", "c"}


def test_a_holder_keeps_a_paused_key(nodes: Nodes, redlock: Redlock) -> None:
    lease = redlock.acquire("key", ttl=10)
    redlock.pause("key", 60)
    lease.extend(30)
    assert lease.expires_in > 20
    assert lease.release()


@pytest.mark.parametrize("key", FORMS)
def test_a_key_is_free_when_its_pause_ends(nodes: Nodes, key: str | Limit | Rate) -> None:
    redlock = nodes.connected()
    redlock.pause("key", 0.5)
    refused(redlock, key)
    assert redlock.acquire(key, wait=TIMEOUT, retry=WHEN_WOKEN)


@pytest.mark.parametrize("key", FORMS)
def test_the_end_of_a_pause_wakes_a_call_that_waits(nodes: Nodes, key: str | Limit | Rate) -> None:
    redlock = nodes.connected()
    redlock.pause("key", 4 * TIMEOUT)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(redlock.acquire, key, wait=2 * TIMEOUT, retry=WHEN_WOKEN)
        wait_until(lambda: all(nodes.waiting(n, PAUSE) for n in range(len(nodes))))
        assert redlock.resume("key")
        assert call.result(TIMEOUT).is_valid


def test_resume_tells_whether_the_key_was_paused(nodes: Nodes, redlock: Redlock) -> None:
    redlock.pause("key", 60)
    assert [redlock.resume("key"), redlock.resume("key")] == [True, False]


@pytest.mark.parametrize(("first", "second"), [(600, 60), (60, 600)], ids=["shorter", "longer"])
def test_a_second_pause_may_be_shorter_or_longer(nodes: Nodes, first: int, second: int) -> None:
    redlock = nodes.connected()
    redlock.pause("key", first)
    redlock.pause("key", second)
    assert second / 10 < (refused(redlock, "key").expires_in or 0) <= second


@pytest.mark.parametrize("begin", [Nodes.connected, Nodes.client], ids=["connected", "new"])
def test_a_pause_is_on_all_nodes(nodes: Nodes, begin: Callable[[Nodes], Redlock]) -> None:
    assert begin(nodes).pause("key", 60) == {}
    assert None not in nodes.owners(PAUSE)


def test_a_node_that_is_still_connecting_is_waited_for(
    servers: ServerNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers.pause(4)
    redlock = servers.client()
    transport = client_of(redlock).transport
    sleep = transport.sleep

    def let_it_answer(seconds: float) -> None:
        servers.resume(4)
        sleep(seconds)

    monkeypatch.setattr(transport, "sleep", let_it_answer)
    assert redlock.pause("key", 60) == {}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that are down are not waited for as if they were about to be connected."""
    monkeypatch.setattr(pausing, "_CONNECT_TIMEOUTS", 0)


@pytest.mark.usefixtures("impatient")
def test_a_node_that_is_down_is_named(nodes: Nodes, redlock: Redlock) -> None:
    nodes.kill(4)
    assert list(redlock.pause("key", 60)) == [redlock.node_names[4]]


@pytest.mark.usefixtures("impatient")
def test_fewer_nodes_than_a_quorum_are_an_error(nodes: Nodes) -> None:
    redlock = nodes.connected(node_timeout=CALM)
    nodes.kill(2, 3, 4)
    with pytest.raises(QuorumUnavailable, match="paused on 2 of 5 nodes, but 3 are needed"):
        redlock.pause("key", 60)


@pytest.mark.usefixtures("impatient")
def test_a_resume_that_reaches_too_few_nodes_is_an_error(nodes: Nodes, redlock: Redlock) -> None:
    redlock.pause("key", 60)
    nodes.kill(2, 3, 4)
    with pytest.raises(QuorumUnavailable, match="may still be paused: 2 of 5"):
        redlock.resume("key")


def test_a_pause_holds_while_a_minority_of_nodes_has_forgotten_it(nodes: Nodes) -> None:
    redlock = nodes.connected(guard=False)
    redlock.pause("key", 60)
    nodes.flush(3, 4)
    assert nodes.attempt(redlock, "key").is_granted is False


def test_a_node_in_quarantine_is_paused(nodes: Nodes, redlock: Redlock) -> None:
    nodes.flush(4)
    assert isinstance(nodes.run(4, acquire((KEY,), "us", LONG, 0, LONG)), Quarantined)
    assert redlock.pause("key", 60) == {}
    assert nodes.owner(4, PAUSE) is not None


def test_a_pause_survives_a_restart_that_keeps_the_data(nodes: Nodes, redlock: Redlock) -> None:
    redlock.pause("key", 600)
    nodes.restart(0, keep_data=True)
    assert nodes.owner(0, PAUSE) is not None


# Messages: they are sent with their locks, and their bodies wait.


def test_a_message_gets_its_lock_while_the_key_is_paused(nodes: Nodes) -> None:
    client = client_of(nodes.connected())
    pausing.pause_lock(client, "key", 60)
    reserved = client.reserve([KEY], ttl=60, grace=10, label="queued", retry_for=0)
    assert reserved.reservation.node_keys == (KEY.stored,)


def test_a_worker_does_not_take_it_over_while_the_key_is_paused(nodes: Nodes) -> None:
    client = client_of(nodes.connected())
    pausing.pause_lock(client, "key", 60)
    brought = client.reserve([KEY], ttl=60, grace=60, label="queued", retry_for=0).reservation
    with pytest.raises(LockContended) as raised:
        client.acquire_for_task(["key"], reservation=brought)
    assert raised.value.holder == PAUSED


def sent_while_paused(nodes: Nodes) -> tuple[Client, Reservation]:
    """Return the reservation of a message for a paused key that the first node would grant."""
    client = client_of(nodes.connected(node_timeout=TIMEOUT))
    pausing.pause_lock(client, "key", 60)
    brought = client.reserve([KEY], ttl=60, grace=60, label="queued", retry_for=0).reservation
    wait_until(lambda: nodes.owners("key") == [brought.owner] * 5)
    nodes.forget(0, ANY_PAUSE)
    return client, brought


def test_the_lock_of_a_message_outlasts_refusals(servers: ServerNodes) -> None:
    client, brought = sent_while_paused(servers)
    servers.pause(1, 2, 3, 4)  # so the node that grants the key replies before the others refuse it
    with ThreadPoolExecutor(1) as pool:
        attempt = pool.submit(client.acquire_for_task, ["key"], reservation=brought)
        wait_until(lambda: servers.owner(0, "key") != brought.owner)
        servers.resume(1, 2, 3, 4)
        with pytest.raises(LockContended):
            attempt.result(TIMEOUT)
    wait_until(lambda: servers.owners("key") == [brought.owner] * 5)


def test_the_lock_of_a_message_outlasts_refusals_of_memory_nodes(memory: MemoryNodes) -> None:
    client, brought = sent_while_paused(memory)  # these nodes reply in their order
    with pytest.raises(LockContended):
        client.acquire_for_task(["key"], reservation=brought)
    wait_until(lambda: memory.owners("key") == [brought.owner] * 5)


def test_a_rate_that_the_publisher_takes_is_refused(nodes: Nodes) -> None:
    client = client_of(nodes.connected())
    pausing.pause_lock(client, "api", 60)
    rate = Key.of(PREFIX, "api", 5, 1000)
    with pytest.raises(LockContended) as raised:
        client.reserve([KEY, rate], ttl=60, grace=10, label="queued", retry_for=0)
    assert raised.value.key == "api"


# What one node does.


def test_a_pause_that_ends_ends_no_other(one_node: Nodes) -> None:
    other = Key.of(PREFIX, "other")
    put(one_node)
    put(one_node, other)
    one_node.run(0, resume(other))
    assert isinstance(one_node.run(0, acquire((KEY,), "us", LONG, 0, 0)), Refused)


def test_a_shorter_pause_ends_no_longer_one(one_node: Nodes) -> None:
    other = Key.of(PREFIX, "other")
    put(one_node)
    put(one_node, other, ms=50)
    wait_until(lambda: one_node.owner(0, pause_of(other.stored)) is None)
    assert isinstance(one_node.run(0, acquire((KEY,), "us", LONG, 0, 0)), Refused)


def test_who_is_refused_by_a_pause_is_woken_by_its_end(one_node: Nodes) -> None:
    assert one_node.woken(0) == []
    put(one_node)
    ask(one_node, KEY)
    one_node.run(0, resume(KEY))
    assert (CHANNEL, "us") in one_node.woken(0)


def test_who_waited_for_an_earlier_pause_is_not_woken(one_node: Nodes) -> None:
    assert one_node.woken(0) == []
    put(one_node, ms=100)
    ask(one_node, limited(KEY.stored, 1, 1000), name="earlier")
    wait_until(lambda: one_node.owner(0, PAUSE) is None)
    put(one_node)
    one_node.run(0, resume(KEY))
    assert one_node.woken(0) == []


def test_a_further_pause_keeps_those_that_wait(one_node: Nodes) -> None:
    put(one_node)
    ask(one_node, KEY)
    put(one_node)
    assert one_node.waiting(0, PAUSE) == ["us"]


def test_a_release_wakes_nobody_while_the_key_is_paused(one_node: Nodes) -> None:
    one_node.put(0, "key", "holder")
    assert one_node.woken(0) == []
    ask(one_node, KEY)
    put(one_node)
    one_node.run(0, release((KEY,), "holder", 7))
    assert one_node.woken(0) == []


@pytest.mark.parametrize("key", [KEY, limited(KEY.stored, 2)])
def test_who_waited_before_the_pause_is_woken_by_its_end(one_node: Nodes, key: Key) -> None:
    for holder in ("a", "b")[: key.holders]:
        one_node.run(0, acquire((key,), holder, LONG, 0, 0))
    assert one_node.woken(0) == []
    ask(one_node, key)
    put(one_node)
    for place in key.places:
        owner = one_node.owner(0, place.removeprefix(PREFIX))
        one_node.run(0, release([Key.read(place)], owner or "", 7))
    one_node.run(0, resume(KEY))
    assert one_node.woken(0) == [(wake_channel(key.stored), "us")]


def test_the_end_of_a_pause_wakes_nobody_for_a_key_that_is_held(one_node: Nodes) -> None:
    one_node.put(0, "key", "holder")
    assert one_node.woken(0) == []
    ask(one_node, KEY)
    put(one_node)
    one_node.run(0, resume(KEY))
    assert one_node.woken(0) == []


def test_who_waits_keeps_its_place_for_the_key(one_node: Nodes) -> None:
    put(one_node)
    ask(one_node, KEY, name="second", since=2)
    ask(one_node, KEY, name="first", since=1)
    assert one_node.waiting(0, "key") == ["first", "second"]


def test_a_paused_rate_gives_no_turn(one_node: Nodes) -> None:
    put(one_node)
    vote = ask(one_node, limited(KEY.stored, 1, 1000))
    assert isinstance(vote, Refused)
    assert vote.turn_in == 0
    assert one_node.waiting(0, limited(KEY.stored, 1, 1000).stored) == []


def test_records_are_not_paused(one_node: Nodes) -> None:
    marker = Key.record("redlock-meta:message:0")
    one_node.put(0, ANY_PAUSE, "a pause")
    one_node.put(0, "redlock-meta:paused:redlock-meta:message:0", "somebody")
    assert isinstance(one_node.run(0, acquire((marker,), "us", LONG, 0, 0)), Granted)


def test_a_pause_refuses_the_previous_owner(one_node: Nodes) -> None:
    one_node.put(0, "key", "before")
    put(one_node)
    vote = one_node.run(0, acquire((KEY,), "us", LONG, 0, 0, "before"))
    assert isinstance(vote, Refused)
    assert one_node.owner(0, "key") == "before"


def test_a_key_that_is_held_and_paused_is_refused_as_paused(one_node: Nodes) -> None:
    one_node.put(0, "key", "holder")
    put(one_node)
    vote = one_node.run(0, acquire((KEY,), "us", LONG, 0, 0))
    assert isinstance(vote, Refused)
    assert isinstance(vote.holders[0], KeyHolder)
    assert vote.holders[0].owner == PAUSED
