"""Of a key with a rate so many slots are granted in a period, wherever it begins."""

from __future__ import annotations

import itertools
import time

import pytest

from celery_redlock import LockContended, Rate, Redlock
from celery_redlock.core import client_of
from celery_redlock.protocol.commands import Waiter
from celery_redlock.protocol.keys import Key, wait_queue_key
from celery_redlock.protocol.votes import Granted, NotHeld, Refused, Vote
from celery_redlock.protocol.wait_queue import MAX_TURNS
from tests.support.commands import acquire, move, release
from tests.support.nodes import PREFIX, Nodes, ServerNodes
from tests.support.waiting import TIMEOUT, wait_until

LONG = 60_000
SHORT = 100
HOUR = Rate("key", "2/h")


def turn(vote: Vote) -> float:
    """Return in how many seconds it is the turn of one that was refused."""
    assert isinstance(vote, Refused)
    return vote.turn_in


#: Each attempt has an owner value of its own.
_attempts = itertools.count()


def ask(
    nodes: Nodes, key: Key, name: str, keep_ms: int = 10 * LONG, *, since: int = 1, rank: int = 0
) -> Vote:
    """Let a waiter try to acquire a slot on the first node."""
    waiter = Waiter(name, since, keep_ms, rank=rank)
    return nodes.run(0, acquire((key,), f"{name} {next(_attempts)}", LONG, 0, 0, "", waiter))


def take(nodes: Nodes, key: Key) -> Vote:
    """Let a newcomer without a name try to acquire a slot on the first node."""
    return nodes.run(0, acquire((key,), f"newcomer {next(_attempts)}", LONG, 0, 0))


def let_a_turn_come(nodes: Nodes, key: Key) -> None:
    """Let all slots be taken, and `w5` wait until it is its turn and they are free."""

    def has_its_turn() -> bool:
        while isinstance(take(nodes, key), Granted):
            pass
        return isinstance(ask(nodes, key, "w5", since=5), Refused)

    wait_until(has_its_turn)
    wait_until(lambda: all(nodes.owner(0, slot) is None for slot in key.places))


def kept_for(vote: Vote) -> str:
    """Return for whom a free slot is kept."""
    return vote.holders[-1].owner if isinstance(vote, Refused) else ""


def kept(slots: int, period_ms: int) -> Key:
    """Return a key of so many slots, each kept for a time."""
    return Key.of(PREFIX, "key", slots, period_ms)


def test_one_more_is_refused_with_the_time_at_which_a_slot_is_free(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    for _ in range(2):
        client.acquire(HOUR, wait=TIMEOUT)
    with pytest.raises(LockContended, match="'key' has reached its rate;") as refused:
        client.acquire(HOUR)
    assert refused.value.expires_in is not None
    assert 3600 < refused.value.expires_in < 3673


def test_a_holder_does_not_give_its_slot_back(any_nodes: Nodes, client: Redlock) -> None:
    for _ in range(2):
        assert client.acquire(HOUR, wait=TIMEOUT).release()
    with pytest.raises(LockContended):
        client.acquire(HOUR)


def test_an_attempt_that_gets_no_lease_gives_its_slots_back(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    any_nodes.hold("other", "them", range(5))
    with pytest.raises(LockContended):
        client.acquire([HOUR, "other"])
    for _ in range(2):
        assert client.acquire(HOUR, wait=TIMEOUT).is_valid


def test_an_extension_does_not_keep_the_slot_longer(any_nodes: Nodes, client: Redlock) -> None:
    lease = client.acquire(Rate("key", "1/s"), wait=TIMEOUT)
    lease.extend(60.0)
    assert client.acquire(Rate("key", "1/s"), wait=TIMEOUT).is_valid


def test_the_next_one_gets_it_a_period_after_the_first(nodes: Nodes, client: Redlock) -> None:
    began = time.monotonic()
    for _ in range(3):
        client.acquire(Rate("key", "2/s"), wait=TIMEOUT)
    assert time.monotonic() - began > 1.0


def test_waiters_have_turns_of_their_own(one_node: Nodes) -> None:
    key = kept(2, LONG)
    for _ in range(2):
        assert isinstance(take(one_node, key), Granted)
    turns = [turn(ask(one_node, key, f"w{since}", since=since)) for since in range(4)]
    assert max(turns[:2]) <= 60.001
    # Less the time between their questions.
    assert [turns[2] - turns[0], turns[3] - turns[1]] == pytest.approx([60, 60], abs=20)


def test_a_waiter_of_a_smaller_rank_has_the_next_turn(one_node: Nodes) -> None:
    key = kept(1, LONG)
    take(one_node, key)
    first, second = (turn(ask(one_node, key, f"w{since}", since=since)) for since in (2, 3))
    urgent = turn(ask(one_node, key, "urgent", since=4, rank=-1))
    assert urgent <= first < second


def test_one_whose_turn_went_to_a_smaller_rank_gets_the_turn_after_it(one_node: Nodes) -> None:
    key = kept(1, LONG)
    take(one_node, key)
    _, second = (turn(ask(one_node, key, f"w{since}", since=since)) for since in (2, 3))
    ask(one_node, key, "urgent", since=4, rank=-1)
    assert turn(ask(one_node, key, "w2", since=2)) == pytest.approx(second, abs=20)
    assert turn(ask(one_node, key, "w3", since=3)) > second + 20


def test_one_that_waits_no_longer_has_no_turn(one_node: Nodes) -> None:
    key = kept(1, LONG)
    take(one_node, key)
    first = turn(ask(one_node, key, "w1"))
    ask(one_node, key, "w1", keep_ms=0)
    assert turn(ask(one_node, key, "w2")) <= first


#: Who asks while a slot is kept for `w5`: a name, since when, and a rank.
NEWCOMER = ("", 0, 0)


def answer(nodes: Nodes, key: Key, who: tuple[str, int, int]) -> str:
    """Return for whom the slot is kept that somebody asks for; `granted` if it is not."""
    name, since, rank = who
    asked = ask(nodes, key, name, since=since, rank=rank) if name else take(nodes, key)
    return "granted" if isinstance(asked, Granted) else kept_for(asked)


@pytest.mark.parametrize(
    ("slots", "who", "answers"),
    [
        (1, [NEWCOMER], ["waiting w5"]),
        (1, [("w6", 6, 0)], ["waiting w5"]),
        (1, [NEWCOMER, ("w4", 4, 0)], ["waiting w5", "granted"]),
        (1, [NEWCOMER, ("urgent", 9, -1)], ["waiting w5", "granted"]),
        (2, [NEWCOMER, NEWCOMER], ["granted", "waiting w5"]),
        (2, [("w5", 5, 0), NEWCOMER], ["granted", "granted"]),
    ],
    ids=[
        "no newcomer takes it",
        "none that asked later takes it",
        "one that asked before takes it",
        "one of a smaller rank takes it",
        "a newcomer takes what is left",
        "no second one is kept",
    ],
)
def test_the_slot_of_one_whose_turn_it_is_is_kept(
    one_node: Nodes, slots: int, who: list[tuple[str, int, int]], answers: list[str]
) -> None:
    key = kept(slots, SHORT)

    def is_kept() -> bool:
        let_a_turn_come(one_node, key)
        return [answer(one_node, key, one) for one in who] == answers

    wait_until(is_kept)


def test_a_slot_is_not_kept_for_one_that_does_not_come(one_node: Nodes) -> None:
    key = kept(1, SHORT)
    let_a_turn_come(one_node, key)
    wait_until(lambda: isinstance(take(one_node, key), Granted))


def test_one_that_does_not_come_to_its_turn_is_forgotten(one_node: Nodes) -> None:
    key = kept(1, SHORT)
    let_a_turn_come(one_node, key)

    def is_forgotten() -> bool:
        ask(one_node, key, "w6", since=6)
        return "w5" not in one_node.waiting(0, key.stored)

    wait_until(is_forgotten)


def test_one_that_comes_back_is_where_it_was_in_the_order(one_node: Nodes) -> None:
    key = kept(1, LONG)
    take(one_node, key)
    for since in (6, 5, 7):
        ask(one_node, key, f"w{since}", since=since)
    assert one_node.waiting(0, key.stored) == ["w5", "w6", "w7"]
    assert turn(ask(one_node, key, "w6", since=6)) == pytest.approx(2 * LONG / 1000, abs=20)


def test_a_waiter_whose_attempt_is_undone_keeps_its_place(one_node: Nodes) -> None:
    key = kept(1, SHORT)

    def is_kept() -> bool:
        let_a_turn_come(one_node, key)
        granted = isinstance(ask(one_node, key, "w5", since=5), Granted)
        one_node.run(0, release((key,), "w5", 0))
        return granted and one_node.waiting(0, key.stored) == ["w5"]

    wait_until(is_kept)


def test_one_that_has_a_slot_is_before_no_other(one_node: Nodes) -> None:
    names = (f"key {number}" for number in itertools.count())

    def is_first() -> bool:
        key = Key.of(PREFIX, next(names), 1, LONG)
        one_node.run(0, acquire((key,), "first", LONG, 0, 0))
        ask(one_node, key, "w5", since=5)
        one_node.run(0, release((key,), "first", 0))
        assert isinstance(ask(one_node, key, "w5", since=5), Granted)
        return turn(ask(one_node, key, "w6", since=6)) <= 60.001

    wait_until(is_first)


def test_a_waiter_that_has_its_lock_waits_no_longer(any_nodes: Nodes, client: Redlock) -> None:
    key = Rate("key", "1/s")
    for _ in range(2):
        client.acquire(key, wait=TIMEOUT)
    place = client_of(client).key_of(key).stored
    wait_until(lambda: not any(any_nodes.waiting(node, place) for node in range(5)))


def test_five_thousand_waiters_have_turns_in_order(one_server: ServerNodes) -> None:
    key = kept(10, LONG)
    for _ in range(10):
        take(one_server, key)
    crowd = {f"w{number}": number for number in range(5000)}
    one_server.cluster.client(0).zadd(wait_queue_key(key.stored), crowd)
    late = one_server.run(0, acquire((key,), "late", LONG, 0, 0, "", Waiter("late", 5000, 10**9)))
    assert turn(late) == pytest.approx(501 * LONG / 1000, abs=60)


def test_of_more_waiters_than_a_node_remembers_the_first_ones_stay(one_server: ServerNodes) -> None:
    key = kept(1, LONG)
    take(one_server, key)
    crowd = {f"w{number}": number for number in range(10, MAX_TURNS + 10)}
    one_server.cluster.client(0).zadd(wait_queue_key(key.stored), crowd)
    ask(one_server, key, "early", since=5)
    late = one_server.run(0, acquire((key,), "late", LONG, 0, 0, "", Waiter("late", 10**6, 10**9)))
    assert turn(late) > 0
    waiting = one_server.waiting(0, key.stored)
    assert (len(waiting), waiting[0], "late" in waiting) == (MAX_TURNS, "early", False)


def test_a_rate_that_nodes_have_lost_in_part_is_granted_again_by_no_minority(nodes: Nodes) -> None:
    client = nodes.connected()
    once = Rate("key", "1/h")
    lease = client.acquire(once, wait=TIMEOUT)
    slot = f"{client_of(client).key_of(once).stored}0"
    wait_until(lambda: nodes.owners(slot) == [lease.owner] * 5)
    nodes.lose(slot, (0, 1))
    with pytest.raises(LockContended):
        client.acquire(once)


@pytest.mark.parametrize("ttl", [None, 60.0, 2 * 3600.0], ids=["free", "soon free", "free later"])
def test_a_release_sets_the_slot_for_the_rest_of_the_period_where_no_quorum_has_it(
    any_nodes: Nodes, client: Redlock, ttl: float | None
) -> None:
    rate = Rate("key", "1/h")
    lease = client.acquire(rate, wait=TIMEOUT)
    (place,) = client_of(client).key_of(rate).places
    wait_until(lambda: any_nodes.owners(place) == [lease.owner] * 5)
    any_nodes.forget(0, place)
    if ttl is not None:
        any_nodes.put(0, place, "another attempt", ttl)
    lease.release()
    wait_until(lambda: any_nodes.owner(0, place) == lease.owner)
    assert any_nodes.left(0, place) > max(3600.0, ttl or 0.0) - TIMEOUT


def test_a_second_round_that_finds_the_slot_taken_names_when_it_is_free(one_node: Nodes) -> None:
    key = kept(2, LONG)
    one_node.put(0, key.places[1], "them")
    refused = one_node.run(0, move((key,), "us", 7, (1,), LONG, 0))
    assert isinstance(refused, NotHeld)
    assert refused.turn_in > 0
