"""The slot of a message is reserved, taken over by its receiver, given back and cancelled."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest

from celery_redlock import Limit, LockContended, LockNotAcquired, Rate, Redlock
from celery_redlock.core import PendingReservation, Reservation, client_of
from celery_redlock.core.lease import release_with
from celery_redlock.protocol.commands import Waiter
from celery_redlock.protocol.votes import Refused
from tests.support.commands import acquire
from tests.support.nodes import Nodes
from tests.support.waiting import TIMEOUT, wait_until

KEY = Limit("key", 2)
HOUR = 3600.0


def reserve(client: Redlock, *keys: str | Limit | Rate, **options: Any) -> PendingReservation:
    """Reserve keys for an hour."""
    asked = [client_of(client).key_of(key) for key in keys or (KEY,)]
    options = {"ttl": HOUR, "grace": HOUR, "label": "queued", "retry_for": 5.0, **options}
    return client_of(client).reserve(asked, **options)


def everywhere(nodes: Nodes, client: Redlock) -> Reservation:
    """Reserve a slot, and wait until every node has it."""
    found = reserve(client).reservation
    wait_until(lambda: nodes.owners(found.node_keys[0]) == [found.owner] * len(nodes))
    return found


def test_a_reserved_slot_counts(any_nodes: Nodes, client: Redlock) -> None:
    reserve(client)
    client.acquire(KEY, wait=TIMEOUT)
    with pytest.raises(LockContended):
        reserve(client)


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
        reserve(client)
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
    assert len(reserve(client).reservation.node_keys) == 1
    with pytest.raises(LockContended):
        reserve(client)


def test_the_receiver_takes_the_slot_over(any_nodes: Nodes, client: Redlock) -> None:
    reservation = everywhere(any_nodes, client)
    client.acquire(KEY, wait=TIMEOUT)
    lease = client_of(client).acquire_for_task([KEY], reservation=reservation, wait=TIMEOUT)
    (place,) = reservation.node_keys
    assert place == f"{client_of(client).key_of(KEY).stored}{lease.slot}"
    wait_until(lambda: any_nodes.owners(place) == [lease.owner] * 5)


def test_only_one_receiver_takes_it_over(any_nodes: Nodes, client: Redlock) -> None:
    reservation = everywhere(any_nodes, client)
    client.acquire(KEY, wait=TIMEOUT)
    client_of(client).acquire_for_task([KEY], reservation=reservation, wait=TIMEOUT)
    with pytest.raises(LockContended):
        client_of(client).acquire_for_task([KEY], reservation=reservation)


def test_each_takeover_of_a_slot_has_a_larger_token(any_nodes: Nodes, client: Redlock) -> None:
    lease = client.acquire(KEY, wait=TIMEOUT)
    tokens = [lease.fencing_token]
    for _ in range(3):
        back = Reservation(
            node_keys=(f"{client_of(client).key_of(KEY).stored}{lease.slot}",),
            owner=client_of(client).new_owner_value("queued"),
            expires_at=time.time() + HOUR,
        )
        assert release_with(lease, {}, back)
        lease = client_of(client).acquire_for_task([KEY], reservation=back, wait=TIMEOUT)
        tokens.append(lease.fencing_token)
    assert tokens == sorted(set(tokens))


def test_a_takeover_that_fails_gives_the_slot_back(any_nodes: Nodes, client: Redlock) -> None:
    reservation = everywhere(any_nodes, client)
    any_nodes.hold("other", "one", [0, 1])
    any_nodes.hold("other", "two", [2, 3])
    with pytest.raises(LockNotAcquired):
        client_of(client).acquire_for_task([KEY, "other"], reservation=reservation)
    (place,) = reservation.node_keys
    wait_until(lambda: any_nodes.owners(place) == [reservation.owner] * 5)


def test_a_slot_that_is_cancelled_is_free(any_nodes: Nodes, client: Redlock) -> None:
    reservation = everywhere(any_nodes, client)
    assert client_of(client).cancel(reservation, wait=True)
    any_nodes.wait_free(reservation.node_keys[0])


def test_a_message_that_replaces_another_takes_its_slot(any_nodes: Nodes, client: Redlock) -> None:
    older = everywhere(any_nodes, client)
    newer = reserve(client, previous=older).reservation
    assert newer.node_keys == older.node_keys
    wait_until(lambda: any_nodes.owners(newer.node_keys[0]) == [newer.owner] * 5)


def test_a_replacement_that_fails_gives_the_slot_back(any_nodes: Nodes, client: Redlock) -> None:
    # Of two reservations one is in each slot, so that one is not in the last.
    for older in (everywhere(any_nodes, client), everywhere(any_nodes, client)):
        any_nodes.forget(4, "other")
        any_nodes.hold("other", "one", [0, 1])
        any_nodes.hold("other", "two", [2, 3])
        with pytest.raises(LockNotAcquired):
            reserve(
                client,
                KEY,
                "other",
                retry_for=0.0,
                previous=older,
            )
        place = older.node_keys[0]
        wait_until(
            lambda place=place, older=older: any_nodes.owners(place) == [older.owner] * 5,
            message=lambda place=place: f"{place}: {any_nodes.owners(place)}",
        )


def test_a_cancelled_replacement_gives_the_slot_back(any_nodes: Nodes, client: Redlock) -> None:
    older = everywhere(any_nodes, client)
    newer = reserve(client, previous=older).reservation
    wait_until(lambda: any_nodes.owners(newer.node_keys[0]) == [newer.owner] * 5)
    client_of(client).cancel(newer, previous=older)
    wait_until(lambda: any_nodes.owners(older.node_keys[0]) == [older.owner] * 5)
