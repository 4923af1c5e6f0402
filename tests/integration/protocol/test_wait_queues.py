"""Nodes remember whom they refuse, and wake them when the key is released."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from celery_redlock.core import client_of
from celery_redlock.protocol.commands import MAX_RANK, ReleaseAction, Waiter, enqueue
from celery_redlock.protocol.keys import GOES_FIRST, WOKEN_PREFIX, wait_queue_key, wake_channel
from celery_redlock.protocol.votes import Granted, Refused, Vote
from celery_redlock.protocol.wait_queue import COMES_WITHIN_US, MAX_WAITERS, MORE_FOR_LATE, START_US
from tests.support.commands import acquire, forget_waiter, release
from tests.support.nodes import PREFIX, Nodes, ServerNodes
from tests.support.waiting import wait_until

KEY = PREFIX + "key"
OTHER = PREFIX + "other"
CHANNEL = wake_channel(KEY)

T = TypeVar("T")

LONG = 60_000

#: A moment of 2026, in ms: scores of real waiters are as large.
NOW_MS, DAY_MS = 1_790_000_000_000, 86_400_000

#: Of a waiter of a fair lock.
GRACE = 50_000


def ask(
    nodes: Nodes,
    owner: str,
    *keys: str,
    since: int = 1,
    keep: int = LONG,
    grace: int = 0,
    rank: int = 0,
) -> Vote:
    """Let a waiter of the same name try to acquire keys on the first node."""
    waiter = Waiter(owner, since, keep, grace, rank=rank)
    return nodes.run(0, acquire(keys or (KEY,), owner, LONG, 0, 0, "", waiter))


def end(nodes: Nodes, owner: str, *keys: str, token: int = 7) -> None:
    """Release what an owner has on the first node."""
    nodes.run(0, release(keys or (KEY,), owner, token))


@pytest.fixture
def held(one_node: Nodes) -> Nodes:
    """Nodes of which the first has given the key to a holder."""
    one_node.put(0, "key", "holder")
    assert one_node.woken(0) == []
    return one_node


def test_a_node_remembers_whom_it_refuses(held: Nodes) -> None:
    assert isinstance(ask(held, "us"), Refused)
    assert held.waiting(0, "key") == ["us"]


def test_a_release_wakes_the_two_that_have_waited_longest(held: Nodes) -> None:
    ask(held, "third", since=3)
    ask(held, "first", since=1)
    ask(held, "second", since=2)
    end(held, "holder")
    assert held.woken(0) == [(CHANNEL, "first"), (CHANNEL, "second")]


def test_a_release_wakes_by_rank_and_within_a_rank_by_time(held: Nodes) -> None:
    ask(held, "third", since=NOW_MS - 9, rank=0)
    ask(held, "second", since=NOW_MS, rank=-1)
    ask(held, "first", since=NOW_MS - 1, rank=-1)
    end(held, "holder")
    assert held.woken(0) == [(CHANNEL, "first"), (CHANNEL, "second")]


def test_no_wait_of_six_weeks_makes_up_for_a_rank(held: Nodes) -> None:
    ask(held, "old", since=NOW_MS - 42 * DAY_MS, rank=4)
    ask(held, "urgent", since=NOW_MS, rank=3)
    assert held.waiting(0, "key") == ["urgent", "old"]


def test_the_smallest_and_the_largest_rank_are_told_apart_to_the_millisecond(held: Nodes) -> None:
    for rank in (MAX_RANK, -MAX_RANK):
        for later in (1, 0):
            ask(held, f"{rank} {later}", since=NOW_MS + later, rank=rank)
    order = [f"{rank} {later}" for rank in (-MAX_RANK, MAX_RANK) for later in (0, 1)]
    assert held.waiting(0, "key") == order


def test_one_that_is_entered_again_keeps_its_rank(held: Nodes) -> None:
    ask(held, "other", since=NOW_MS - 9)
    held.run(0, enqueue([(KEY, Waiter("urgent", NOW_MS, LONG, rank=-1))]))
    assert held.waiting(0, "key") == ["urgent", "other"]


def test_in_order_one_of_a_smaller_rank_takes_a_free_key_before_those_that_wait(
    held: Nodes,
) -> None:
    ask(held, "old", since=NOW_MS - 9, grace=GRACE)
    end(held, "holder")
    assert isinstance(ask(held, "urgent", since=NOW_MS, grace=GRACE, rank=-1), Granted)


def test_in_order_one_of_a_larger_rank_lets_those_go_first_that_began_to_wait_later(
    held: Nodes,
) -> None:
    ask(held, "urgent", since=NOW_MS - 8, grace=GRACE)
    end(held, "holder")
    vote = ask(held, "old", since=NOW_MS - 9, grace=GRACE, rank=1)
    assert isinstance(vote, Refused)
    assert vote.holders[0].owner == GOES_FIRST + "urgent"


def test_one_that_ends_without_the_key_is_forgotten(held: Nodes) -> None:
    ask(held, "us", since=NOW_MS, rank=-1)
    ask(held, "other", since=NOW_MS)
    held.run(0, forget_waiter((KEY,), Waiter("us", NOW_MS, LONG, rank=-1)))
    assert held.waiting(0, "key") == ["other"]


def test_one_of_the_same_name_that_waits_since_later_is_not_forgotten(held: Nodes) -> None:
    ask(held, "us", since=NOW_MS)
    held.run(0, forget_waiter((KEY,), Waiter("us", NOW_MS - 1, LONG)))
    assert held.waiting(0, "key") == ["us"]


def test_to_forget_a_waiter_releases_nothing(held: Nodes) -> None:
    held.run(0, forget_waiter((KEY,), Waiter("holder", 1, LONG)))
    assert held.owner(0, "key") == "holder"


def test_who_is_refused_learns_how_many_come_before_it(held: Nodes) -> None:
    ask(held, "old", since=NOW_MS - 9)
    ask(held, "urgent", since=NOW_MS - 8, rank=-1)
    vote = ask(held, "us", since=NOW_MS, rank=-1)
    assert isinstance(vote, Refused)
    assert vote.before == 1


def test_an_attempt_that_is_undone_wakes_nobody(held: Nodes) -> None:
    ask(held, "us")
    end(held, "holder", token=0)
    assert held.woken(0) == []


def test_a_key_that_is_kept_wakes_nobody(held: Nodes) -> None:
    ask(held, "us")
    kept = {KEY: ReleaseAction(LONG, "finished")}
    held.run(0, release((KEY,), "holder", 7, actions=kept))
    assert held.woken(0) == []


def test_somebody_else_s_release_wakes_nobody(held: Nodes) -> None:
    ask(held, "us")
    end(held, "them")
    assert held.woken(0) == []


def test_who_is_granted_the_key_is_not_woken_for_it(held: Nodes) -> None:
    ask(held, "us")
    held.forget(0, "key")
    assert isinstance(ask(held, "us"), Granted)
    assert held.waiting(0, "key") == []


def test_who_waits_no_longer_is_not_woken(held: Nodes) -> None:
    ask(held, "us")
    assert isinstance(ask(held, "us", keep=0), Refused)
    assert held.waiting(0, "key") == []


def test_who_is_woken_keeps_its_place(held: Nodes) -> None:
    for at, name in enumerate(("first", "second", "third"), start=1):
        ask(held, name, since=at)
    end(held, "holder")
    assert held.waiting(0, "key") == ["first", "second", "third"]


def test_who_is_refused_again_is_woken_again(held: Nodes) -> None:
    ask(held, "us")
    end(held, "holder")
    held.put(0, "key", "another")
    ask(held, "us")
    end(held, "another")
    assert held.woken(0) == [(CHANNEL, "us")] * 2


def pass_time(nodes: Nodes, us: int) -> None:
    """Wait until so many microseconds have passed on the first node."""
    start = nodes.now_us(0)
    wait_until(lambda: nodes.now_us(0) - start > us)


def played_within(nodes: Nodes, us: int, scene: Callable[[], T]) -> T:
    """Play a scene until it took less than so long by the first node's clock; return its result."""
    results: list[T] = []

    def is_swift() -> bool:
        start = nodes.now_us(0)
        results.append(scene())
        return nodes.now_us(0) - start < us

    wait_until(is_swift, message="the machine never had the time")
    return results[-1]


def test_who_does_not_return_is_woken_once_more_and_removed(held: Nodes) -> None:
    ask(held, "lost")
    end(held, "holder")
    held.put(0, "key", "another")
    pass_time(held, COMES_WITHIN_US)
    end(held, "another")
    assert held.woken(0) == [(CHANNEL, "lost")] * 2
    assert held.waiting(0, "key") == []


def test_while_those_that_were_woken_are_on_their_way_no_others_are_woken(held: Nodes) -> None:
    def scene() -> list[tuple[str, str]]:
        held.flush(0)
        held.put(0, "key", "holder")
        for at in range(9):
            ask(held, f"w{at}", since=at)
        end(held, "holder")
        held.put(0, "key", "another")
        end(held, "another")
        return held.woken(0)

    assert [name for _, name in played_within(held, COMES_WITHIN_US, scene)] == ["w0", "w1"]


def test_for_each_that_does_not_come_two_others_are_woken(held: Nodes) -> None:
    for at in range(9):
        ask(held, f"w{at}", since=at)
    end(held, "holder")
    held.put(0, "key", "another")
    pass_time(held, COMES_WITHIN_US)
    end(held, "another")
    late, others = ["w0", "w1"], [f"w{at}" for at in range(2, 8)]
    assert [name for _, name in held.woken(0)] == [*late, *late, *others]


def test_of_a_crowd_that_does_not_come_each_release_passes_more(held: Nodes) -> None:
    for at in range(45):
        ask(held, f"gone{at}", since=at)
    passed = []
    for _ in range(4):
        end(held, "holder")
        passed.append(len(held.woken(0)))
        held.put(0, "key", "holder")
        pass_time(held, COMES_WITHIN_US)
    # Those that are late are woken once more, and beside them two others, and two for each of them.
    assert passed == [2, 2 + 6, 6 + 14, 14 + 2 + MORE_FOR_LATE]


def test_a_waiter_that_lacks_another_key_wakes_the_next_in_its_place(held: Nodes) -> None:
    def scene() -> list[tuple[str, str]]:
        held.flush(0)
        held.put(0, "key", "holder")
        held.put(0, "other", "them")
        for since, name in enumerate(("first", "second", "third"), start=1):
            ask(held, name, since=since)
        end(held, "holder")
        ask(held, "first", KEY, OTHER, since=1)
        ask(held, "second", KEY, OTHER, since=2)
        return held.woken(0)

    woken = played_within(held, COMES_WITHIN_US, scene)
    assert [name for _, name in woken] == ["first", "second", "third"]


def test_a_first_attempt_does_not_overtake_one_that_was_just_woken(held: Nodes) -> None:
    def scene() -> Vote:
        held.put(0, "key", "holder")
        ask(held, "woken", since=1)
        end(held, "holder")
        return held.run(0, acquire((KEY,), "new", LONG, 0, 0, "", Waiter("", 2, 0)))

    assert first_in_line(played_within(held, START_US, scene)) == "woken"


def test_one_that_was_woken_has_a_start_for_a_moment_only(held: Nodes) -> None:
    ask(held, "woken", since=1)
    end(held, "holder")
    pass_time(held, START_US)
    vote = held.run(0, acquire((KEY,), "new", LONG, 0, 0, "", Waiter("", 2, 0)))
    assert isinstance(vote, Granted)


def test_a_call_that_does_not_wait_takes_a_key_that_another_was_woken_for(held: Nodes) -> None:
    ask(held, "woken", since=1)
    end(held, "holder")
    assert isinstance(held.run(0, acquire((KEY,), "new", LONG, 0, 0)), Granted)


def test_a_waiter_that_is_put_back_may_be_woken_at_once(held: Nodes) -> None:
    ask(held, "us")
    end(held, "holder")
    held.put(0, "key", "another")
    held.run(0, enqueue([(KEY, Waiter("us", 1, LONG))]))
    end(held, "another")
    assert held.woken(0) == [(CHANNEL, "us")] * 2


def test_a_waiter_that_a_node_has_forgotten_is_remembered_again(held: Nodes) -> None:
    held.run(0, enqueue([(KEY, Waiter("us", 1, LONG))]))
    end(held, "holder")
    assert held.woken(0) == [(CHANNEL, "us")]


def test_those_that_have_returned_are_not_woken_for_twice(held: Nodes) -> None:
    for at in range(9):
        ask(held, f"w{at}", since=at)
    end(held, "holder")
    held.put(0, "key", "another")
    for at in range(2):
        ask(held, f"w{at}", since=at)
    end(held, "another")
    woken = [name for _, name in held.woken(0)]
    assert woken == ["w0", "w1"] * 2


def test_a_waiter_is_remembered_for_the_keys_that_it_is_refused(held: Nodes) -> None:
    ask(held, "us", KEY, OTHER)
    assert (held.waiting(0, "key"), held.waiting(0, "other")) == (["us"], [])


def test_who_gets_all_its_keys_waits_for_none_of_them(held: Nodes) -> None:
    held.put(0, "other", "holder")
    ask(held, "us", KEY, OTHER)
    held.forget(0, "key")
    held.forget(0, "other")
    ask(held, "us", KEY, OTHER)
    assert (held.waiting(0, "key"), held.waiting(0, "other")) == ([], [])


def test_of_too_many_those_are_remembered_that_have_waited_longest(held: Nodes) -> None:
    for at in range(MAX_WAITERS + 2):
        ask(held, f"w{at}", since=MAX_WAITERS + 2 - at)
    waiting = held.waiting(0, "key")
    assert (len(waiting), waiting[0], waiting[-1]) == (MAX_WAITERS, f"w{MAX_WAITERS + 1}", "w2")


def test_a_wait_queue_lasts_as_long_as_its_longest_waiter(one_server: ServerNodes) -> None:
    one_server.put(0, "key", "holder")
    ask(one_server, "us", keep=LONG)
    ask(one_server, "them", keep=1)
    left = one_server.cluster.client(0).pttl(wait_queue_key(KEY))
    assert 0 < left <= LONG
    assert left > LONG / 2


def test_a_wait_queue_that_was_overwritten_keeps_nobody_from_the_lock(
    one_server: ServerNodes,
) -> None:
    one_server.cluster.client(0).set(wait_queue_key(KEY), "not a sorted set")
    for grace in (0, GRACE):
        assert isinstance(ask(one_server, "us", grace=grace), Granted)
        assert isinstance(ask(one_server, "them", grace=grace), Refused)
        end(one_server, "us")
    assert one_server.owner(0, "key") is None


def test_a_waiter_that_is_entered_again_while_it_acquires_is_not_woken_by_its_own_release(
    any_nodes: Nodes,
) -> None:
    waiter = Waiter("us", 1, LONG)
    client = any_nodes.connected()
    lease = client_of(client).acquire_for_task(("key",), waiter=waiter, first_waiter=waiter)
    any_nodes.run(0, enqueue([(KEY, waiter)]))
    any_nodes.woken(0)
    lease.release()
    wait_until(lambda: any_nodes.owner(0, "key") is None)
    assert any_nodes.woken(0) == []


# Locks whose waiters go in order.


def first_in_line(vote: Vote) -> str | None:
    """Return who goes first, if that is why a node refused."""
    if not isinstance(vote, Refused) or not vote.holders[0].owner.startswith(GOES_FIRST):
        return None
    return vote.holders[0].owner.removeprefix(GOES_FIRST)


def test_who_would_have_overtaken_wakes_the_one_that_goes_first(held: Nodes) -> None:
    ask(held, "first", since=1, grace=GRACE)
    held.forget(0, "key")
    ask(held, "later", since=2, grace=GRACE)
    assert held.woken(0) == [(CHANNEL, "first")]


def test_the_first_in_line_takes_the_key(held: Nodes) -> None:
    ask(held, "first", since=1, grace=GRACE)
    ask(held, "second", since=2, grace=GRACE)
    end(held, "holder")
    assert isinstance(ask(held, "first", since=1, grace=GRACE), Granted)


def test_the_second_in_line_lets_the_first_go_first(held: Nodes) -> None:
    ask(held, "first", since=1, grace=GRACE)
    ask(held, "second", since=2, grace=GRACE)
    end(held, "holder")
    assert first_in_line(ask(held, "second", since=2, grace=GRACE)) == "first"


def test_one_that_has_waited_longer_goes_before_one_that_was_woken(held: Nodes) -> None:
    ask(held, "woken", since=2, grace=GRACE)
    end(held, "holder")
    assert isinstance(ask(held, "older", since=1, grace=GRACE), Granted)


def test_a_refusal_tells_how_many_have_waited_longer(held: Nodes) -> None:
    votes = [ask(held, name, since=at) for at, name in enumerate("abc", start=1)]
    first_try = held.run(0, acquire((KEY,), "new", LONG, 0, 0, "", Waiter("", 9, 0)))
    assert [getattr(vote, "before", None) for vote in (*votes, first_try)] == [0, 1, 2, 3]


def test_one_that_does_not_come_holds_the_others_up_for_its_grace_only(held: Nodes) -> None:
    ask(held, "lost", since=1, grace=1)
    ask(held, "second", since=2, grace=1)
    end(held, "holder")
    start = held.now_us(0)
    while held.now_us(0) - start < 3000:
        pass
    assert isinstance(ask(held, "second", since=2, grace=1), Granted)


def test_where_a_wake_up_cannot_be_noted_no_waiter_goes_first(one_server: ServerNodes) -> None:
    one_server.put(0, "key", "holder")
    ask(one_server, "gone", since=1, grace=GRACE)
    one_server.cluster.client(0).set(f"{WOKEN_PREFIX}{KEY}", "not a sorted set")
    one_server.forget(0, "key")
    assert isinstance(ask(one_server, "later", since=2, grace=GRACE), Granted)


def test_a_crowd_of_those_that_are_gone_is_passed_soon(held: Nodes) -> None:
    for at in range(30):
        ask(held, f"gone{at}", since=at, grace=1)
    end(held, "holder")
    tries = 0
    while not isinstance(ask(held, "later", since=100, grace=1), Granted):
        start, tries = held.now_us(0), tries + 1
        while held.now_us(0) - start < 1500:
            pass
    assert tries <= 6  # graces, in which 2, 4 + 1, 10 + 1 and so on are woken


def test_one_that_lacks_another_key_holds_nobody_up(held: Nodes) -> None:
    held.put(0, "other", "them")
    ask(held, "us", KEY, OTHER, since=1, grace=GRACE)
    end(held, "holder")
    assert isinstance(ask(held, "us", KEY, OTHER, since=1, grace=GRACE), Refused)
    assert isinstance(ask(held, "later", since=2, grace=GRACE), Granted)


def test_the_time_that_one_in_line_has_left_is_told(held: Nodes) -> None:
    ask(held, "first", since=1, grace=GRACE)
    held.forget(0, "key")
    vote = ask(held, "later", since=2, grace=GRACE)
    assert isinstance(vote, Refused)
    assert 0 < vote.holders[0].expires_in <= GRACE / 1000


def test_whoever_is_not_fair_takes_a_free_key(held: Nodes) -> None:
    ask(held, "first", since=1, grace=GRACE)
    held.forget(0, "key")
    assert isinstance(ask(held, "later", since=2), Granted)
