"""A message's lock ends with its grace unless its message was sent, and with the message's end."""

from __future__ import annotations

from functools import partial

import pytest

from celery_redlock import Limit, LockContended, LockNotAcquired, QuorumUnavailable, Redlock
from celery_redlock.core import Reservation, client_of
from celery_redlock.protocol.commands import Waiter
from celery_redlock.protocol.votes import Refused
from celery_redlock.transport.redis import channel
from tests.integration.protocol.reserving import (
    GRACE,
    KEY_OR_SLOT,
    LockKey,
    everywhere,
    long_on,
    reserve,
    reserve_everywhere,
    take_over,
)
from tests.support.commands import acquire
from tests.support.forking import end_of, in_child
from tests.support.nodes import Nodes, ServerNodes
from tests.support.together import in_threads
from tests.support.waiting import TIMEOUT, wait_until

RECORD = "redlock-meta:record"

pytestmark = pytest.mark.usefixtures("slow_is_not_stopped")


def test_a_reservation_stands_for_its_grace_until_it_is_lengthened(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    reserved = reserve_everywhere(any_nodes, client)
    assert all(any_nodes.left(node, "key") <= GRACE for node in range(5))
    client_of(client).confirm(reserved)
    wait_until(lambda: long_on(any_nodes, client, reserved.reservation))


def test_a_reservation_whose_maker_dies_ends_with_its_grace(nodes: Nodes) -> None:
    # So short a grace leaves nodes little time to answer; an attempt that is too slow is repeated.
    reserve(nodes.connected(), grace=0.5, wait=TIMEOUT)
    nodes.wait_free("key")


def test_a_grace_is_not_longer_than_the_reservation(nodes: Nodes, client: Redlock) -> None:
    reserved = reserve_everywhere(nodes, client, ttl=5.0)
    client_of(client).confirm(reserved)
    nodes.connect(client)
    assert all(nodes.left(node, "key") <= 5 for node in range(5))


def test_a_reservation_may_be_longer_than_any_lease(nodes: Nodes) -> None:
    client = nodes.connected(max_ttl=5.0, ttl=5.0)
    client_of(client).confirm(reserved := reserve(client))
    wait_until(lambda: long_on(nodes, client, reserved.reservation))


def test_a_stopped_node_keeps_what_it_sets_late_for_the_grace_only(
    any_nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "_FOLLOWUP_WINDOW", 0.0)  # whatever is late is later than that
    client = any_nodes.connected()
    any_nodes.pause(3, 4)
    reserved = reserve(client)
    client_of(client).confirm(reserved)
    any_nodes.resume(3, 4)
    any_nodes.connect(client)
    wait_until(lambda: everywhere(any_nodes, reserved.reservation.owner, "key"))
    wait_until(lambda: long_on(any_nodes, client, reserved.reservation, 0, 1, 2))
    assert all(any_nodes.left(node, "key") <= GRACE for node in (3, 4))


def test_a_node_that_answers_after_the_quorum_is_lengthened_as_well(servers: ServerNodes) -> None:
    client = servers.connected()
    servers.pause(4)
    reserved = reserve(client)
    servers.resume(4)
    wait_until(lambda: servers.owner(4, "key"))
    # The answer is on the wire and not read; lengthening reads it first.
    client_of(client).confirm(reserved)
    wait_until(lambda: long_on(servers, client, reserved.reservation))


def test_a_slow_node_is_lengthened_when_its_answer_is_read(
    servers: ServerNodes, client: Redlock
) -> None:
    servers.pause(4)
    reserved = reserve(client)
    client_of(client).confirm(reserved)
    servers.resume(4)

    wait_until(lambda: long_on(servers, client, reserved.reservation))


def test_what_somebody_else_has_meanwhile_is_not_lengthened(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    reserved = reserve_everywhere(any_nodes, client)
    any_nodes.put(0, "key", "them", ttl=5.0)
    any_nodes.forget(1, "key")
    client_of(client).confirm(reserved)
    wait_until(lambda: long_on(any_nodes, client, reserved.reservation, 2, 3, 4))
    assert any_nodes.owners("key")[:2] == ["them", None]
    assert any_nodes.left(0, "key") <= 5


def test_a_reservation_is_lengthened_behind_whoever_uses_its_connections(nodes: Nodes) -> None:
    client = nodes.connected()
    reserved = reserve_everywhere(nodes, client)
    borrowed = client_of(client).transport.checkout()
    client_of(client).confirm(reserved)
    client_of(client).transport.checkin(borrowed)
    wait_until(lambda: long_on(nodes, client, reserved.reservation))


def test_a_reservation_is_lengthened_although_its_connections_are_given_up(nodes: Nodes) -> None:
    client = nodes.connected()
    reserved = reserve_everywhere(nodes, client)
    nodes.connect(client)
    borrowed = client_of(client).transport.checkout()
    other = client_of(client).transport.checkout()
    other.connect()
    client_of(client).transport.checkin(other)
    client_of(client).confirm(reserved)
    client_of(client).transport.discard(borrowed)
    # Some quorum: the nodes whose answers had been read.
    wait_until(
        lambda: sum(long_on(nodes, client, reserved.reservation, node) for node in range(5)) >= 3
    )


def test_a_server_that_forgot_its_scripts_lengthens_all_the_same(servers: ServerNodes) -> None:
    client = servers.connected()
    reserved = reserve_everywhere(servers, client)
    for node in range(5):
        servers.cluster.client(node).script_flush()
    client_of(client).confirm(reserved)

    wait_until(lambda: long_on(servers, client, reserved.reservation))


def test_what_was_said_before_a_client_is_closed_is_done(nodes: Nodes, client: Redlock) -> None:
    reserved = reserve_everywhere(nodes, client)
    client_of(client).confirm(reserved)
    client.close()
    wait_until(lambda: long_on(nodes, client, reserved.reservation))


def test_a_forked_child_does_not_lengthen_what_its_parent_reserved(servers: ServerNodes) -> None:
    client = servers.connected()
    reserved = reserve_everywhere(servers, client)

    def confirm() -> None:
        client_of(client).confirm(reserved)
        client.close()

    assert end_of(in_child(confirm)) == 0
    servers.connect(client)
    assert all(servers.left(node, "key") <= GRACE for node in range(5))
    client_of(client).confirm(reserved)
    wait_until(lambda: long_on(servers, client, reserved.reservation))


def test_a_key_that_is_held_is_not_reserved(any_nodes: Nodes, client: Redlock) -> None:
    lease = any_nodes.lease_of(client)
    with pytest.raises(LockContended) as taken:
        reserve(client)
    assert (taken.value.key, taken.value.holder, taken.value.split) == ("key", lease.owner, False)


def test_without_a_quorum_nothing_is_reserved(nodes: Nodes, client: Redlock) -> None:
    nodes.kill(2, 3, 4)
    with pytest.raises(QuorumUnavailable):
        reserve(client, retry_for=0.5)
    wait_until(lambda: nodes.owner(0, "key") is nodes.owner(1, "key") is None)


def test_of_many_that_reserve_at_once_one_succeeds_and_the_others_know_who(nodes: Nodes) -> None:
    crowd = [nodes.connected() for _ in range(8)]

    def publish(number: int) -> Reservation | LockContended:
        try:
            return reserve(crowd[number], retry_for=20.0).reservation
        except LockContended as error:
            return error

    ends = in_threads(len(crowd), publish)
    (winner,) = (end for end in ends if isinstance(end, Reservation))
    lost = [(end.split, end.holder) for end in ends if isinstance(end, LockContended)]
    assert lost == [(False, winner.owner)] * 7


@KEY_OR_SLOT
def test_a_queued_lock_moves_to_the_message_that_replaces_it(
    any_nodes: Nodes, client: Redlock, key: LockKey
) -> None:
    old = reserve_everywhere(any_nodes, client, key).reservation
    new = reserve_everywhere(any_nodes, client, key, previous=old).reservation
    assert new.node_keys == old.node_keys
    with pytest.raises(LockContended):
        take_over(client, old, key)


def test_a_lock_that_has_gone_on_is_not_replaced(any_nodes: Nodes, client: Redlock) -> None:
    old = reserve(client).reservation
    lease = take_over(client, old)
    any_nodes.wait_held(lease)
    with pytest.raises(LockContended) as taken:
        reserve(client, previous=old)
    assert taken.value.holder == lease.owner
    any_nodes.wait_held(lease)


def test_a_replacement_that_stays_undecided_gives_the_keys_back(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    reserved = reserve_everywhere(any_nodes, client)
    client_of(client).confirm(reserved)
    wait_until(lambda: long_on(any_nodes, client, reserved.reservation))
    any_nodes.hold("other", "one", [0, 1])
    any_nodes.hold("other", "another", [2])
    with pytest.raises(LockContended) as undecided:
        reserve(client, "key", "other", retry_for=0.1, previous=reserved.reservation)
    assert undecided.value.split
    wait_until(lambda: long_on(any_nodes, client, reserved.reservation))


def test_a_replacement_takes_a_reserved_key_in_the_same_step_and_does_not_extend_it(
    any_nodes: Nodes, client: Redlock
) -> None:
    old = reserve(client).reservation
    new = reserve(client, records=[RECORD], previous=old)
    wait_until(lambda: everywhere(any_nodes, new.reservation.owner, "key", RECORD))
    client_of(client).confirm(new)
    wait_until(lambda: long_on(any_nodes, client, new.reservation))
    assert all(any_nodes.left(node, RECORD) <= GRACE for node in range(5))
    assert new.reservation.node_keys == old.node_keys


def test_a_replacement_whose_reserved_key_is_held_leaves_the_keys_as_they_are(
    any_nodes: Nodes, client: Redlock
) -> None:
    old = reserve_everywhere(any_nodes, client).reservation
    any_nodes.hold(RECORD, "another", range(5))
    with pytest.raises(LockContended) as taken:
        reserve(client, records=[RECORD], previous=old)
    assert taken.value.holder == "another"
    assert everywhere(any_nodes, old.owner, "key")


def test_a_replacement_that_stays_undecided_leaves_no_reserved_key(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    old = reserve_everywhere(any_nodes, client).reservation
    any_nodes.hold(RECORD, "one", [0, 1])
    any_nodes.hold(RECORD, "another", [2])
    with pytest.raises(LockContended):
        reserve(client, records=[RECORD], previous=old, retry_for=0.1)
    expected = ["one", "one", "another", None, None]
    wait_until(lambda: any_nodes.owners(RECORD) == expected)
    wait_until(lambda: everywhere(any_nodes, old.owner, "key"))


@KEY_OR_SLOT
def test_a_replacement_whose_message_could_not_be_sent_gives_the_keys_back(
    any_nodes: Nodes, client: Redlock, key: LockKey
) -> None:
    old = reserve(client, key).reservation
    new = reserve_everywhere(any_nodes, client, key, previous=old).reservation
    assert client_of(client).cancel(new, previous=old)
    wait_until(lambda: long_on(any_nodes, client, old))


@KEY_OR_SLOT
def test_a_reservation_that_is_cancelled_frees_every_node(
    any_nodes: Nodes, client: Redlock, key: LockKey
) -> None:
    client_of(client).confirm(pending := reserve(client, key))
    assert client_of(client).cancel(pending.reservation)
    any_nodes.wait_free(pending.reservation.node_keys[0])


def test_cancelling_can_wait_for_a_quorum(any_nodes: Nodes, client: Redlock) -> None:
    reserved = reserve(client)
    assert client_of(client).cancel(reserved.reservation, wait=True)
    assert not client_of(client).cancel(reserved.reservation, wait=True)
    any_nodes.wait_free("key")


def test_a_client_that_has_no_connection_yet_cancels_all_the_same(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    reserved = reserve_everywhere(any_nodes, client)
    assert client_of(any_nodes.client()).cancel(reserved.reservation)
    any_nodes.wait_free("key")


def test_cancelling_does_nothing_once_the_message_has_arrived(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    reserved = reserve(client)
    lease = take_over(client, reserved.reservation)
    any_nodes.wait_held(lease)
    assert not client_of(client).cancel(reserved.reservation, wait=True)
    any_nodes.wait_held(lease)


def test_cancelling_without_nodes_does_not_raise(nodes: Nodes, client: Redlock) -> None:
    reserved = reserve(client)
    nodes.kill(*range(5))
    assert not client_of(client).cancel(reserved.reservation, wait=True)


# Slots of a key with a limit.

SLOT = Limit("key", 2)


def test_a_reserved_slot_counts(any_nodes: Nodes, client: Redlock) -> None:
    reserve(client, SLOT)
    client.acquire(SLOT, wait=TIMEOUT)
    with pytest.raises(LockContended):
        reserve(client, SLOT)


def test_a_free_slot_is_left_to_one_that_waits_for_it(any_nodes: Nodes, client: Redlock) -> None:
    leases = [client.acquire(SLOT, wait=TIMEOUT) for _ in range(2)]
    older = Waiter("older", 1, keep_ms=60_000)
    remembered = partial(
        client_of(client).acquire_for_task, [SLOT], waiter=older, first_waiter=older, wait=0
    )
    with pytest.raises(LockContended):
        remembered()
    wait_until(
        lambda: all(
            any_nodes.waiting(node, client_of(client).key_of(SLOT).stored) for node in range(5)
        )
    )
    leases[0].release()
    with pytest.raises(LockContended):
        reserve(client, SLOT)
    assert remembered().is_valid


def test_a_slot_that_those_who_wait_leave_is_reserved(any_nodes: Nodes, client: Redlock) -> None:
    key = client_of(client).key_of(SLOT)
    for node in range(5):
        for slot in range(2):
            any_nodes.put(node, key.places[slot], "them")
        ask = acquire((key,), "older", 60_000, 0, 0, "", Waiter("older", 1, 60_000))
        assert isinstance(any_nodes.run(node, ask), Refused)
        for slot in range(2):
            any_nodes.forget(node, key.places[slot])
    assert len(reserve(client, SLOT).reservation.node_keys) == 1
    with pytest.raises(LockContended):
        reserve(client, SLOT)


def test_the_receiver_takes_the_slot_over(any_nodes: Nodes, client: Redlock) -> None:
    reservation = reserve_everywhere(any_nodes, client, SLOT).reservation
    client.acquire(SLOT, wait=TIMEOUT)
    lease = take_over(client, reservation, SLOT, wait=TIMEOUT)
    (place,) = reservation.node_keys
    assert place == f"{client_of(client).key_of(SLOT).stored}{lease.slot}"
    wait_until(lambda: everywhere(any_nodes, lease.owner, place))


def test_a_replacement_that_fails_gives_the_slot_back(any_nodes: Nodes, client: Redlock) -> None:
    # Of two reservations one is in each slot, so that one is not in the last.
    for older in [reserve_everywhere(any_nodes, client, SLOT).reservation for _ in range(2)]:
        any_nodes.forget(4, "other")
        any_nodes.hold("other", "one", [0, 1])
        any_nodes.hold("other", "two", [2, 3])
        with pytest.raises(LockNotAcquired):
            reserve(client, SLOT, "other", retry_for=0.0, previous=older)
        wait_until(
            lambda older=older: everywhere(any_nodes, older.owner, *older.node_keys),
            message=lambda older=older: f"{older}: {any_nodes.owners(older.node_keys[0])}",
        )
