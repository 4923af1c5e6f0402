"""Locks of messages, as they are reserved, taken over and handed back."""

from __future__ import annotations

import time
from typing import Any

import pytest

from celery_redlock import Lease, Limit, Rate, Redlock
from celery_redlock.core import PendingReservation, Reservation, client_of
from tests.support.nodes import Nodes
from tests.support.waiting import wait_until

HOUR = 3600.0
GRACE = 60.0
#: More than a grace, and less than an hour by what a busy machine takes.
LONG = 3000.0

#: The record of a message.
MESSAGE = "redlock-meta:message:one"

LockKey = str | Limit | Rate

#: A slot of a key is reserved, taken over and cancelled as a key is.
KEY_OR_SLOT = pytest.mark.parametrize("key", ["key", Limit("key", 1)], ids=["a key", "a slot"])


def reserve(client: Redlock, *keys: LockKey, **options: Any) -> PendingReservation:
    """Reserve keys, or one, for an hour, as the publisher of a message does."""
    asked = [client_of(client).key_of(key) for key in keys or ("key",)]
    options = {"ttl": HOUR, "grace": GRACE, "label": "queued", "retry_for": 5.0, **options}
    return client_of(client).reserve(asked, **options)


def everywhere(nodes: Nodes, owner: str, *places: str) -> bool:
    """Return whether each node gives these places to an owner."""
    return all(nodes.owners(place) == [owner] * len(nodes) for place in places)


def reserve_everywhere(
    nodes: Nodes, client: Redlock, *keys: LockKey, **options: Any
) -> PendingReservation:
    """Reserve keys, and wait until every node has them."""
    pending = reserve(client, *keys, **options)
    reserved = pending.reservation
    wait_until(lambda: everywhere(nodes, reserved.owner, *reserved.node_keys))
    return pending


def long_on(nodes: Nodes, client: Redlock, reserved: Reservation, *which: int) -> bool:
    """Return whether these nodes, or all, keep a reservation beyond its grace."""
    client_of(client).inspect([client_of(client).key_of("unused").stored])  # reads what came late
    (place,) = reserved.node_keys
    return all(
        nodes.owner(node, place) == reserved.owner and nodes.left(node, place) > LONG
        for node in which or range(len(nodes))
    )


def take_over(client: Redlock, reserved: Reservation, *keys: LockKey, **options: Any) -> Lease:
    """Acquire keys, or one, with what is reserved, as the worker that gets the message does."""
    return client_of(client).acquire_for_task(keys or ["key"], reservation=reserved, **options)


def back_to(client: Redlock, key: LockKey = "key", seconds: float = HOUR) -> Reservation:
    """Return the reservation of a message to which a lease is to hand its key back."""
    return Reservation(
        node_keys=client_of(client).key_of(key).places,
        owner=client_of(client).new_owner_value("queued"),
        expires_at=time.time() + seconds,
    )
