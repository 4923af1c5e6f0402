"""The slot of a message is reserved beside holders and waiters, taken over and given back."""

from __future__ import annotations

from functools import partial

import pytest

from celery_redlock import Limit, LockContended, LockNotAcquired, Redlock
from celery_redlock.core import client_of
from celery_redlock.protocol.commands import Waiter
from celery_redlock.protocol.votes import Refused
from tests.integration.protocol.reserving import (
    everywhere,
    reserve,
    reserve_everywhere,
    take_over,
)
from tests.support.commands import acquire
from tests.support.nodes import Nodes
from tests.support.waiting import TIMEOUT, wait_until

KEY = Limit("key", 2)


def test_a_reserved_slot_counts(any_nodes: Nodes, client: Redlock) -> None:
    reserve(client, KEY)
    client.acquire(KEY, wait=TIMEOUT)
    with pytest.raises(LockContended):
        reserve(client, KEY)


def test_a_free_slot_is_left_to_one_that_waits_for_it(any_nodes: Nodes, client: Redlock) -> None:
    leases = [client.acquire(KEY, wait=TIMEOUT) for _ in range(2)]
    older = Waiter("older", 1, keep_ms=60_000)
    remembered = partial(
        client_of(client).acquire_for_task, [KEY], waiter=older, first_waiter=older, wait=0
    )
    with pytest.raises(LockContended):
        remembered()
    wait_until(
        lambda: all(
            any_nodes.waiting(node, client_of(client).key_of(KEY).stored) for node in range(5)
        )
    )
    leases[0].release()
    with pytest.raises(LockContended):
        reserve(client, KEY)
    assert remembered().is_valid


def test_a_slot_that_those_who_wait_leave_is_reserved(any_nodes: Nodes, client: Redlock) -> None:
    key = client_of(client).key_of(KEY)
    for node in range(5):
        for slot in range(2):
            any_nodes.put(node, key.places[slot], "them")
        ask = acquire((key,), "older", 60_000, 0, 0, "", Waiter("older", 1, 60_000))
        assert isinstance(any_nodes.run(node, ask), Refused)
        for slot in range(2):
            any_nodes.forget(node, key.places[slot])
    assert len(reserve(client, KEY).reservation.node_keys) == 1
    with pytest.raises(LockContended):
        reserve(client, KEY)


def test_the_receiver_takes_the_slot_over(any_nodes: Nodes, client: Redlock) -> None:
    reservation = reserve_everywhere(any_nodes, client, KEY).reservation
    client.acquire(KEY, wait=TIMEOUT)
    lease = take_over(client, reservation, KEY, wait=TIMEOUT)
    (place,) = reservation.node_keys
    assert place == f"{client_of(client).key_of(KEY).stored}{lease.slot}"
    wait_until(lambda: everywhere(any_nodes, lease.owner, place))


def test_a_replacement_that_fails_gives_the_slot_back(any_nodes: Nodes, client: Redlock) -> None:
    # Of two reservations one is in each slot, so that one is not in the last.
    for older in [reserve_everywhere(any_nodes, client, KEY).reservation for _ in range(2)]:
        any_nodes.forget(4, "other")
        any_nodes.hold("other", "one", [0, 1])
        any_nodes.hold("other", "two", [2, 3])
        with pytest.raises(LockNotAcquired):
            reserve(client, KEY, "other", retry_for=0.0, previous=older)
        wait_until(
            lambda older=older: everywhere(any_nodes, older.owner, *older.node_keys),
            message=lambda older=older: f"{older}: {any_nodes.owners(older.node_keys[0])}",
        )
