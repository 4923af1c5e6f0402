"""A reservation is taken over by compare-and-set, and comes back where that did not succeed."""

from __future__ import annotations

import pytest

from celery_redlock import Limit, LockContended, LockKeyError, QuorumUnavailable, Redlock
from celery_redlock.core import Reservation, client_of
from celery_redlock.core.failures import Refusal
from celery_redlock.core.lease import release_with
from celery_redlock.core.waiting import After
from celery_redlock.protocol.keys import Key
from celery_redlock.protocol.votes import Refused
from tests.integration.protocol.reserving import (
    HOUR,
    KEY_OR_SLOT,
    LONG,
    MESSAGE,
    LockKey,
    back_to,
    everywhere,
    reserve_everywhere,
    take_over,
)
from tests.support.commands import acquire
from tests.support.nodes import PREFIX, Nodes, ServerNodes
from tests.support.patching import channel_type, follow
from tests.support.waiting import wait_until

BRIEF = 1.0


def reserve(nodes: Nodes, client: Redlock, *keys: LockKey) -> Reservation:
    """Reserve keys for an hour, and wait until every node has them."""
    return reserve_everywhere(nodes, client, *keys, grace=HOUR).reservation


def share_out(nodes: Nodes, name: str) -> None:
    """Let several contenders share the nodes of a key, two of which are free: a split vote."""
    nodes.hold(name, "one", [0, 1])
    nodes.hold(name, "another", [2])


def test_a_reservation_is_taken_over(any_nodes: Nodes, client: Redlock) -> None:
    lease = take_over(client, reserve(any_nodes, client), ttl=30.0)
    any_nodes.wait_held(lease)
    assert all(any_nodes.left(node, "key") <= 30 for node in range(5))
    assert lease.release()
    any_nodes.wait_free("key")


@KEY_OR_SLOT
def test_each_takeover_has_a_larger_token(any_nodes: Nodes, client: Redlock, key: LockKey) -> None:
    lease = client.acquire(key)
    tokens = [lease.fencing_token]
    for _ in range(3):
        back = back_to(client, key)
        assert release_with(lease, {}, back)
        lease = take_over(client, back, key)
        tokens.append(lease.fencing_token)
    assert tokens == sorted(set(tokens))


def test_a_key_that_somebody_else_has_is_not_taken_over(any_nodes: Nodes, client: Redlock) -> None:
    reservation = reserve(any_nodes, client)
    any_nodes.hold("key", "them", range(5))
    with pytest.raises(LockContended) as taken:
        take_over(client, reservation)
    assert taken.value.holder == "them"
    assert any_nodes.owners("key") == ["them"] * 5


@KEY_OR_SLOT
def test_only_one_copy_of_a_message_takes_its_reservation_over(
    any_nodes: Nodes, client: Redlock, key: LockKey
) -> None:
    reservation = reserve(any_nodes, client, key)
    lease = take_over(client, reservation, key)
    with pytest.raises(LockContended) as taken:
        take_over(client, reservation, key)
    assert taken.value.holder == lease.owner


def test_a_reservation_that_has_ended_is_taken_afresh(any_nodes: Nodes, client: Redlock) -> None:
    reservation = reserve(any_nodes, client)
    any_nodes.lose("key", range(5))
    any_nodes.wait_held(take_over(client, reservation))


def test_free_keys_and_reserved_ones_are_taken_together(any_nodes: Nodes, client: Redlock) -> None:
    reservation = reserve(any_nodes, client, "queued")
    lease = take_over(client, reservation, "queued", "run", records=[MESSAGE])
    wait_until(lambda: everywhere(any_nodes, lease.owner, "queued", "run", MESSAGE))


def test_a_key_that_refuses_leaves_the_reservation_as_it_was(one_node: Nodes) -> None:
    one_node.put(0, "queued", "before", ttl=3600.0)
    one_node.put(0, "run", "them")
    command = acquire((PREFIX + "queued", PREFIX + "run"), "us", 1000, 5, 0, "before")
    vote = one_node.run(0, command)
    assert isinstance(vote, Refused)
    assert [(holder.key, holder.owner) for holder in vote.holders] == [(1, "them")]
    assert one_node.owner(0, "queued") == "before"
    assert one_node.left(0, "queued") > 3000


def test_a_reservation_without_an_end_still_has_none_when_another_key_refuses(
    one_server: ServerNodes,
) -> None:
    redis = one_server.cluster.client(0)
    redis.set(PREFIX + "queued", "before")
    redis.set(PREFIX + "run", "them")
    command = acquire((PREFIX + "queued", PREFIX + "run"), "us", 1000, 5, 0, "before")
    assert isinstance(one_server.run(0, command), Refused)
    assert (redis.get(PREFIX + "queued"), redis.pttl(PREFIX + "queued")) == (b"before", -1)


@pytest.mark.parametrize("queued", ["queued", Limit("queued", 2)], ids=["a key", "a slot"])
def test_a_takeover_that_is_not_granted_gives_the_reservation_back(
    any_nodes: Nodes, client: Redlock, queued: LockKey
) -> None:
    reservation = reserve(any_nodes, client, queued)
    share_out(any_nodes, "run")
    with pytest.raises(LockContended) as undecided:
        take_over(client, reservation, queued, "run", records=[MESSAGE])
    assert undecided.value.split
    (place,) = reservation.node_keys
    wait_until(lambda: everywhere(any_nodes, reservation.owner, place))
    assert all(any_nodes.left(node, place) > LONG for node in range(5))
    wait_until(lambda: any_nodes.owners("run") == ["one", "one", "another", None, None])
    any_nodes.wait_free(MESSAGE)


def test_a_run_key_that_another_task_has_does_not_cost_the_message_its_place(
    any_nodes: Nodes, client: Redlock
) -> None:
    reservation = reserve(any_nodes, client, "queued")
    any_nodes.hold("run", "them", range(5))
    with pytest.raises(LockContended):
        take_over(client, reservation, "queued", "run", records=[MESSAGE])
    assert any_nodes.owners("queued") == [reservation.owner] * 5
    any_nodes.wait_free(MESSAGE)


@pytest.mark.parametrize("held", ["key", MESSAGE])
def test_nothing_is_given_back_when_another_copy_of_the_message_has_it(
    any_nodes: Nodes, client: Redlock, held: str
) -> None:
    reservation = reserve(any_nodes, client)
    any_nodes.hold(held, "the other copy", [0, 1, 2])
    with pytest.raises(LockContended):
        take_over(client, reservation, records=[MESSAGE])
    # Whatever the other two nodes granted is deleted there, not given back.
    wait_until(lambda: any_nodes.owners("key")[3:] == [None, None])


def test_a_node_that_gave_no_answer_is_not_given_the_reservation_back(any_nodes: Nodes) -> None:
    client = any_nodes.connected(node_timeout=BRIEF)
    reservation = reserve(any_nodes, client, "queued")
    any_nodes.hold("run", "one", [0, 1])
    any_nodes.hold("run", "another", [2, 3])
    any_nodes.pause(4)
    with pytest.raises(LockContended):
        take_over(client, reservation, "queued", "run")
    any_nodes.resume(4)
    # It takes the reservation over when it goes on, and then deletes what it took.
    wait_until(lambda: any_nodes.owners("queued") == [reservation.owner] * 4 + [None])


def test_a_takeover_that_an_exception_cuts_short_gives_nothing_back(
    nodes: Nodes, client: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reservation = reserve(nodes, client)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        follow(patched, channel_type(client), "exchange", interrupt)
        with pytest.raises(KeyboardInterrupt):
            take_over(client, reservation)
    nodes.wait_free("key")


def test_a_takeover_whose_counters_differ_gets_its_token_in_a_second_round(
    any_nodes: Nodes, client: Redlock
) -> None:
    reservation = reserve(any_nodes, client)
    ahead = 2**52
    for node in range(5):
        any_nodes.set_fence(node, "key", ahead + node)
    lease = take_over(client, reservation)
    assert ahead + 3 <= lease.fencing_token <= ahead + 5
    any_nodes.wait_held(lease)


def test_a_takeover_whose_second_round_fails_gives_back_where_that_was_answered(
    any_nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = any_nodes.connected(node_timeout=BRIEF)
    reservation = reserve(any_nodes, client)
    for node in range(5):
        any_nodes.set_fence(node, "key", 2**52 + node)

    def stop() -> None:
        patched.undo()
        wait_until(lambda: None not in any_nodes.owners("key"))
        any_nodes.pause(0, 1, 2)

    with monkeypatch.context() as patched:
        follow(patched, channel_type(client), "exchange", stop)
        with pytest.raises(QuorumUnavailable):
            take_over(client, reservation)
    any_nodes.resume(0, 1, 2)
    left = [None, None, None, reservation.owner, reservation.owner]
    wait_until(
        lambda: any_nodes.owners("key") == left, message=lambda: f"{any_nodes.owners('key')}"
    )


def test_what_a_minority_kept_of_a_reservation_ends_with_the_lease(nodes: Nodes) -> None:
    client = nodes.connected()
    reservation = reserve(nodes, client)
    nodes.restart(3, 4, keep_data=True)
    lease = take_over(client, reservation, wait=5.0)
    nodes.wait_held(lease, [0, 1, 2])
    assert nodes.owners("key")[3:] == [reservation.owner] * 2
    assert release_with(lease, {})

    def free_everywhere() -> bool:
        client.acquire("other").release()  # connects to the nodes again
        return not any(nodes.owners("key"))

    wait_until(free_everywhere)


def test_what_a_minority_kept_stays_when_the_reservation_gets_its_lock_back(nodes: Nodes) -> None:
    client = nodes.connected()
    reservation = reserve(nodes, client)
    nodes.restart(3, 4, keep_data=True)
    lease = take_over(client, reservation, wait=5.0)
    nodes.wait_held(lease, [0, 1, 2])
    assert release_with(lease, {}, reservation)
    wait_until(lambda: nodes.owners("key") == [reservation.owner] * 5)


def test_restarted_nodes_do_not_let_a_reservation_be_taken_over(nodes: Nodes) -> None:
    client = nodes.connected()
    reservation = reserve(nodes, client)
    # Their data may be older than somebody else's takeover.
    nodes.restart(0, 1, 2, keep_data=True)
    with pytest.raises(QuorumUnavailable, match="is quarantined"):
        take_over(client, reservation, wait=BRIEF)
    wait_until(lambda: nodes.owners("key").count(reservation.owner) >= 3)


def test_the_record_is_named_where_a_lock_key_is_held_as_well(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    lease = client_of(client).acquire_for_task(["key"], [MESSAGE])
    any_nodes.wait_held(lease)
    with pytest.raises(LockContended, match=MESSAGE) as taken:
        client_of(client).acquire_for_task(["other", "key"], [MESSAGE])
    assert (taken.value.key, taken.value.holder) == (MESSAGE, lease.owner)


def test_no_waiting_goes_on_that_is_said_to_be_of_no_use(nodes: Nodes, client: Redlock) -> None:
    nodes.hold(MESSAGE, "finished", range(5))
    seen: list[Refusal] = []

    def decide(refusal: Refusal) -> After:
        seen.append(refusal)
        return After.END if len(seen) == 2 else After.WAIT

    with pytest.raises(LockContended):
        client_of(client).acquire_for_task(["key"], [MESSAGE], wait=3600.0, decide=decide)
    assert [refusal.key for refusal in seen] == [Key.read(MESSAGE)] * 2


def test_a_split_vote_is_never_final(nodes: Nodes, client: Redlock) -> None:
    share_out(nodes, "key")
    with pytest.raises(LockContended) as undecided:
        client_of(client).acquire_for_task(
            ["key"], decide=lambda refusal: pytest.fail(f"asked about {refusal}")
        )
    assert undecided.value.split


def test_a_record_can_be_taken_alone(nodes: Nodes, client: Redlock) -> None:
    lease = client_of(client).acquire_for_task([], [MESSAGE])
    assert (lease.key, lease.keys) == (MESSAGE, (MESSAGE,))
    nodes.wait_held(lease)
    assert lease.release()
    nodes.wait_free(MESSAGE)


@pytest.mark.parametrize("extra", ["key", "redlock:key", "redlock-meta:guard", ""])
def test_no_other_record_can_be_taken(extra: str, redlock_memory_nodes: list[str]) -> None:
    with Redlock(redlock_memory_nodes) as client, pytest.raises(LockKeyError):
        client_of(client).acquire_for_task(["key"], [extra])
