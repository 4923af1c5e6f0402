"""Of a key with a limit so many hold a slot each, and never more."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_redlock import LeaseLost, Limit, LockContended, Rate, Redlock
from celery_redlock.core import Lease, client_of
from celery_redlock.core import attempt as attempt_module
from celery_redlock.protocol.commands import Waiter
from celery_redlock.protocol.keys import GOES_FIRST, LIMIT_PREFIX, MAX_SLOTS, Key
from celery_redlock.protocol.votes import Acknowledged, Granted, NotHeld, Quarantined, Refused, Vote
from tests.support.commands import acquire, limited, move, release
from tests.support.nodes import PREFIX, Nodes, ServerNodes
from tests.support.together import in_threads
from tests.support.waiting import TIMEOUT, WHEN_WOKEN, wait_until

LONG = 60_000


def slot(number: int, name: str = "key") -> str:
    """Return a slot as nodes store it."""
    return f"{LIMIT_PREFIX}{PREFIX}{name}#{number}"


def fill(client: Redlock, limit: int, name: str = "key") -> list[Lease]:
    """Acquire every slot of a key."""
    return [client.acquire(Limit(name, limit), wait=TIMEOUT) for _ in range(limit)]


def owners(nodes: Nodes, lease: Lease) -> list[str | None]:
    """Return the owner of a lease's slot on each node."""
    assert lease.slot is not None
    return nodes.owners(slot(lease.slot))


def strays(nodes: Nodes, lease: Lease, limit: int) -> int:
    """Return how many other slots have a lease's owner value."""
    return sum(
        nodes.owner(node, slot(number)) == lease.owner
        for number in range(limit)
        if number != lease.slot
        for node in range(len(nodes))
    )


def share_out(nodes: Nodes, *groups: Sequence[int]) -> None:
    """Let others have one slot each on some nodes."""
    for number, group in enumerate(groups):
        nodes.hold(slot(number), f"other {number}", group)


@pytest.mark.parametrize("key", [limited(PREFIX + "key", 2), "key"], ids=["a slot", "a key"])
def test_a_command_that_is_sent_twice_gets_what_it_has(one_node: Nodes, key: Key | str) -> None:
    command = acquire((key,), "us", LONG, 0, 0)
    first, second = one_node.run(0, command), one_node.run(0, command)
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert (second.slots, second.high) == (first.slots, first.high + 1)
    assert [one_node.owner(0, slot(number)) for number in range(2)].count("us") == len(first.slots)


def test_one_more_is_refused_with_the_key_and_the_time_of_the_first_slot(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    client.acquire(Limit("key", 2), ttl=20.0, wait=TIMEOUT)
    client.acquire(Limit("key", 2), ttl=60.0, wait=TIMEOUT)
    with pytest.raises(LockContended, match="Lock 'key' has reached its limit of 2") as refused:
        client.acquire(Limit("key", 2))
    assert refused.value.key == "key"
    assert refused.value.expires_in is not None
    assert 0 < refused.value.expires_in <= 20


def test_a_released_slot_is_taken_by_the_next(any_nodes: Nodes, client: Redlock) -> None:
    first, *_ = fill(client, 2)
    first.release()
    assert client.acquire(Limit("key", 2), wait=TIMEOUT).slot == first.slot


def test_tokens_of_one_slot_increase(any_nodes: Nodes, client: Redlock) -> None:
    tokens: dict[int | None, list[int]] = {}
    for _ in range(12):
        lease = client.acquire(Limit("key", 3), wait=TIMEOUT)
        tokens.setdefault(lease.slot, []).append(lease.fencing_token)
        lease.release()
    assert all(sorted(set(found)) == found for found in tokens.values())


def test_a_free_slot_takes_one_round_trip(
    any_nodes: Nodes, client: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_module, "move", pytest.fail)
    assert client.acquire(Limit("key", 5), wait=TIMEOUT).is_valid


def test_only_so_many_are_in_their_blocks_at_once(nodes: Nodes) -> None:
    inside, most, mutex = 0, 0, threading.Lock()

    def work(_: int) -> None:
        nonlocal inside, most
        client = nodes.connected()
        for _ in range(8):
            with client.lock(Limit("key", 2), wait=TIMEOUT):
                with mutex:
                    inside += 1
                    most = max(most, inside)
                with mutex:
                    inside -= 1

    in_threads(6, work)
    assert most <= 2


# Nodes that grant different slots.


def test_a_node_that_has_moved_gives_the_other_slot_back(any_nodes: Nodes, client: Redlock) -> None:
    share_out(any_nodes, [0, 1], [2])
    lease = client.acquire(Limit("key", 3), wait=TIMEOUT)
    wait_until(lambda: owners(any_nodes, lease).count(lease.owner) >= 3)
    for node, owner in enumerate(owners(any_nodes, lease)):
        others = [any_nodes.owner(node, slot(n)) for n in range(3) if n != lease.slot]
        assert owner != lease.owner or lease.owner not in others


def test_a_release_deletes_what_a_minority_granted_in_other_slots(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    share_out(any_nodes, [0, 1], [2, 3])
    lease = client.acquire(Limit("key", 2), ttl=60.0, wait=TIMEOUT)
    wait_until(lambda: owners(any_nodes, lease).count(lease.owner) == 3)
    wait_until(lambda: strays(any_nodes, lease, 2) == 2)
    assert lease.release()
    wait_until(lambda: strays(any_nodes, lease, 2) == 0)


def test_an_attempt_that_is_refused_leaves_nothing(any_nodes: Nodes, client: Redlock) -> None:
    share_out(any_nodes, [0, 1, 2], [0, 1, 2])
    with pytest.raises(LockContended):
        client.acquire(Limit("key", 2))
    for number in range(2):
        place = slot(number)
        wait_until(lambda place=place: any_nodes.owners(place)[3:] == [None, None])


PAIR = Key.of(PREFIX, "key", 2)


def move_to_the_second(nodes: Nodes, quarantine_ms: int = 0) -> Vote:
    """Let the first node move us from the first slot to the second one."""
    nodes.put(0, slot(0), "us")
    return nodes.run(0, move((PAIR,), "us", 7, (1,), LONG, quarantine_ms))


def test_the_script_moves_to_a_free_slot(one_node: Nodes) -> None:
    assert isinstance(move_to_the_second(one_node), Acknowledged)
    assert [one_node.owner(0, slot(number)) for number in range(2)] == [None, "us"]
    assert one_node.fence(0, slot(1)) == 7


def test_a_slot_that_is_moved_to_lasts_as_long_as_the_lease(one_node: Nodes) -> None:
    move_to_the_second(one_node)
    assert LONG / 2000 < one_node.left(0, slot(1)) <= LONG / 1000


def test_the_script_moves_to_no_slot_that_another_has(one_node: Nodes) -> None:
    one_node.put(0, slot(1), "them")
    assert isinstance(move_to_the_second(one_node), NotHeld)
    assert [one_node.owner(0, slot(number)) for number in range(2)] == ["us", "them"]


@pytest.mark.parametrize("counter", [7, 8])
def test_the_script_moves_to_no_slot_whose_counter_is_at_the_token(
    one_node: Nodes, counter: int
) -> None:
    one_node.set_fence(0, slot(1), counter)
    assert isinstance(move_to_the_second(one_node), NotHeld)
    assert [one_node.owner(0, slot(number)) for number in range(2)] == ["us", None]


def test_the_script_moves_to_no_slot_in_quarantine(one_node: Nodes) -> None:
    one_node.flush(0)
    assert isinstance(move_to_the_second(one_node, LONG), Quarantined)
    assert [one_node.owner(0, slot(number)) for number in range(2)] == ["us", None]


def test_the_script_confirms_a_slot_that_is_ours_in_quarantine_too(one_node: Nodes) -> None:
    one_node.flush(0)
    one_node.put(0, slot(1), "us")
    assert isinstance(move_to_the_second(one_node, LONG), Acknowledged)


# A lease on a slot.


def test_a_slot_that_a_quorum_has_lost_is_lost(any_nodes: Nodes, client: Redlock) -> None:
    lease = client.acquire(Limit("key", 2), wait=TIMEOUT)
    assert lease.slot is not None
    wait_until(lambda: owners(any_nodes, lease) == [lease.owner] * 5)
    any_nodes.hold(slot(lease.slot), "another", range(3))
    with pytest.raises(LeaseLost):
        lease.extend()


def test_an_extension_heals_a_node_that_lost_the_slot(any_nodes: Nodes, client: Redlock) -> None:
    lease = client.acquire(Limit("key", 2), wait=TIMEOUT)
    assert lease.slot is not None
    wait_until(lambda: owners(any_nodes, lease) == [lease.owner] * 5)
    # The extension waits for a quorum only, so that the last node's vote may come too late for it.
    any_nodes.forget(0, slot(lease.slot))

    def is_healed() -> bool:
        lease.extend()
        return owners(any_nodes, lease) == [lease.owner] * 5

    wait_until(is_healed)


def test_the_slot_of_a_holder_that_is_gone_is_free_after_its_ttl(nodes: Nodes) -> None:
    client = nodes.connected()
    client.acquire(Limit("key", 1), ttl=0.5, wait=TIMEOUT)
    assert nodes.connected().acquire(Limit("key", 1), wait=TIMEOUT).slot == 0


def test_a_holder_that_asks_for_its_only_slot_again_is_refused_at_once(nodes: Nodes) -> None:
    client = nodes.connected()
    with client.lock(Limit("key", 1)), pytest.raises(LockContended, match="not re-entrant"):
        client.acquire(Limit("key", 1), wait=TIMEOUT)


def test_a_holder_of_one_slot_may_have_another(nodes: Nodes, client: Redlock) -> None:
    with client.lock(Limit("key", 2), wait=TIMEOUT) as first:
        assert client.acquire(Limit("key", 2), wait=TIMEOUT).slot != first.slot


# Limits that differ.


def test_a_higher_limit_lets_more_in_at_once(any_nodes: Nodes, client: Redlock) -> None:
    fill(client, 2)
    assert client.acquire(Limit("key", 3), wait=TIMEOUT).slot == 2


def test_a_lower_limit_lets_nobody_in_while_its_slots_are_held(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    leases = fill(client, 3)
    with pytest.raises(LockContended):
        client.acquire(Limit("key", 1))
    next(lease for lease in leases if lease.slot == 0).release()
    assert client.acquire(Limit("key", 1), wait=TIMEOUT).slot == 0


def test_limits_that_differ_never_let_more_in_than_the_highest(nodes: Nodes) -> None:
    clients = [nodes.connected() for _ in range(2)]
    for limit, client in zip((2, 4), clients, strict=True):
        for _ in range(6):
            try:
                client.acquire(Limit("key", limit), wait=0.2)
            except LockContended:
                continue
    assert {info is not None for info in clients[0].holders(Limit("key", 4))} == {True}
    assert [info for info in clients[0].holders(Limit("key", 6))[4:] if info] == []


def test_the_most_slots_are_all_granted_and_no_more(any_nodes: Nodes, client: Redlock) -> None:
    leases = [
        client.acquire(Limit("key", MAX_SLOTS), ttl=60.0, wait=TIMEOUT) for _ in range(MAX_SLOTS)
    ]
    assert {lease.slot for lease in leases} == set(range(MAX_SLOTS))
    with pytest.raises(LockContended, match=f"reached its limit of {MAX_SLOTS}"):
        client.acquire(Limit("key", MAX_SLOTS))


# Several keys.


def test_keys_limits_and_rates_are_acquired_all_or_none(any_nodes: Nodes, client: Redlock) -> None:
    client.acquire(Limit("tenant", 1), wait=TIMEOUT)
    with pytest.raises(LockContended) as refused:
        client.acquire(["account", Limit("tenant", 1), Rate("calls", "1/h")])
    assert refused.value.key == "tenant"
    any_nodes.wait_free("account")
    any_nodes.wait_free(f"{client_of(client).key_of(Rate('calls', '1/h')).stored}0")


def test_keys_limits_and_rates_are_held_together(any_nodes: Nodes, client: Redlock) -> None:
    lease = client.acquire(["account", Limit("tenant", 2), Rate("calls", "2/h")], wait=TIMEOUT)
    assert lease.keys == ("account", "tenant", "calls")
    assert set(lease.slots) == {"tenant"}
    assert client.holder("account") is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("key", Limit("key", 1)),
        (Limit("key", 1), Rate("key", "1/h")),
        (Rate("key", "1/h"), Rate("key", "1/m")),
    ],
    ids=["key and limit", "limit and rate", "rates of two periods"],
)
def test_a_key_its_limit_and_each_of_its_rates_are_locks_of_their_own(
    client: Redlock, any_nodes: Nodes, one: str | Limit | Rate, other: str | Limit | Rate
) -> None:
    client.acquire(one, wait=TIMEOUT)
    assert client.acquire(other, wait=TIMEOUT).is_valid


def test_keys_that_end_like_a_slot_are_locks_of_their_own(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    for name in ("a", "a#", "a#3", "a#3#", "a#3#0"):
        leases = fill(client, 4, name)
        assert {lease.slot for lease in leases} == {0, 1, 2, 3}
        assert client.acquire(name, wait=TIMEOUT).is_valid


# What stands where a slot should be.


def test_a_slot_that_is_no_string_is_not_granted(servers: ServerNodes, client: Redlock) -> None:
    for node in range(5):
        servers.cluster.client(node).rpush(slot(0), "a list")
    assert client.acquire(Limit("key", 2), wait=TIMEOUT).slot == 1
    with pytest.raises(LockContended):
        client.acquire(Limit("key", 2))


def test_a_second_round_does_not_move_to_a_slot_that_is_no_string(servers: ServerNodes) -> None:
    client = servers.connected()
    share_out(servers, [], [2, 3, 4])
    for node in (0, 1):
        servers.cluster.client(node).rpush(slot(0), "a list")
    lease = client.acquire(Limit("key", 3), wait=TIMEOUT)
    assert servers.cluster.client(0).type(slot(0)) == b"list"
    assert lease.slot != 0 or owners_of_strings(servers, lease) == [lease.owner] * 3


def owners_of_strings(servers: ServerNodes, lease: Lease) -> list[str | None]:
    """Return the owners of slot 0 on the nodes that have no list there."""
    wait_until(lambda: servers.owner(2, slot(0)) == lease.owner)
    return [servers.owner(node, slot(0)) for node in (2, 3, 4)]


def test_a_slot_that_never_expires_is_not_granted(servers: ServerNodes, client: Redlock) -> None:
    for node in range(5):
        servers.cluster.client(node).set(slot(0), "a program")
    with pytest.raises(LockContended, match="without an expiry"):
        client.acquire(Limit("key", 1))


# Waiting.


def test_a_call_that_waits_for_a_slot_is_woken_by_a_release(nodes: Nodes) -> None:
    first, *_ = fill(nodes.connected(), 2)
    client = nodes.connected()

    def wait() -> int | None:
        with client.lock(Limit("key", 2), wait=TIMEOUT, retry=WHEN_WOKEN) as lease:
            return lease.slot

    with ThreadPoolExecutor(1) as pool:
        woken = pool.submit(wait)
        queue = slot(0)[:-1]
        wait_until(lambda: sum(bool(nodes.waiting(node, queue)) for node in range(5)) >= 3)
        first.release()
        assert woken.result(TIMEOUT) == first.slot


def ask(nodes: Nodes, name: str, since: int) -> Vote:
    """Let a fair waiter try to acquire a slot on the first node."""
    waiter = Waiter(name, since, LONG, LONG)
    return nodes.run(0, acquire((PAIR,), name, LONG, 0, 0, "", waiter))


def test_fair_waiters_share_the_free_slots_in_order(one_node: Nodes) -> None:
    for number in range(2):
        one_node.put(0, slot(number), f"holder {number}")
    for since, name in enumerate(("first", "second", "third"), 1):
        assert isinstance(ask(one_node, name, since), Refused)
    for number in range(2):
        one_node.run(0, release((PAIR.at(number),), f"holder {number}", 7))
    assert isinstance(ask(one_node, "third", 3), Refused)
    assert isinstance(ask(one_node, "second", 2), Granted)
    last = ask(one_node, "third", 3)
    assert isinstance(last, Refused)
    assert GOES_FIRST + "first" in {holder.owner for holder in last.holders}
    assert isinstance(ask(one_node, "first", 1), Granted)


# People who look, and take away.


def test_the_holders_of_all_slots_are_shown(any_nodes: Nodes, client: Redlock) -> None:
    lease = client.acquire(Limit("key", 3), wait=TIMEOUT)
    assert lease.slot is not None
    wait_until(lambda: owners(any_nodes, lease) == [lease.owner] * 5)
    found = client.holders(Limit("key", 3))
    assert [info and info.owner for info in found] == [
        lease.owner if number == lease.slot else None for number in range(3)
    ]


def test_a_lock_that_is_taken_away_is_taken_from_all_its_holders(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    leases = fill(client, 2)
    assert client.force_release(Limit("key", 2))
    for lease in leases:
        with pytest.raises(LeaseLost):
            lease.extend()


def test_a_rate_that_is_taken_away_starts_anew(any_nodes: Nodes, client: Redlock) -> None:
    once = Rate("key", "1/h")
    client.acquire(once, wait=TIMEOUT)
    assert client.force_release(once)
    assert client.acquire(once, wait=TIMEOUT).is_valid
