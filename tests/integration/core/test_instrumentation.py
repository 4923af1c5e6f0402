"""What receivers get of each lock, on memory nodes and on servers, in threads and event loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_redlock import LockContended, LossReason, Redlock
from celery_redlock.core import Lease, Reservation, client_of
from celery_redlock.core.instrumentation import (
    AcquireDetails,
    ExtendDetails,
    LossDetails,
    Outcome,
    ReleaseDetails,
)
from celery_redlock.core.lease import release_with
from tests.support.observing import Events, Interrupt, Interrupted, of_kind


@pytest.fixture(params=["memory", "servers"])
def client(request: pytest.FixtureRequest) -> Iterator[Redlock]:
    if request.param == "memory":
        nodes = request.getfixturevalue("redlock_memory_nodes")[:3]
    else:
        nodes = request.getfixturevalue("redlock_cluster_factory")(3).urls
    with Redlock(nodes, node_timeout=2.0, guard=False) as redlock:
        redlock.acquire("connects", wait=10.0).release()
        yield redlock


def reserve(client: Redlock, previous: Reservation | None = None) -> Reservation:
    """Reserve the key as the publisher of a message does."""
    options: Any = {"ttl": 5.0, "grace": 5.0, "label": "", "retry_for": 5.0, "previous": previous}
    return client_of(client).reserve([client_of(client).key_of("k")], **options).reservation


def test_a_granted_lock_is_reported_with_its_votes(client: Redlock, events: Events) -> None:
    lease = client.acquire("k")
    [details] = of_kind(events, AcquireDetails)
    assert (details.keys, details.outcome, details.attempts) == (("k",), Outcome.GRANTED, 1)
    assert details.fencing_token == lease.fencing_token
    assert set(details.votes) == set(client.node_names)
    assert sum(vote != "none" for vote in details.votes.values()) >= 2


def test_a_refused_lock_is_reported_with_every_attempt(client: Redlock, events: Events) -> None:
    client.acquire("k")
    with pytest.raises(LockContended):
        client.acquire("k", wait=0.2)
    details = of_kind(events, AcquireDetails)[1]
    assert (details.outcome, details.fencing_token) == (Outcome.CONTENDED, None)
    assert details.attempts > 1
    assert details.waited >= 0.2


def test_an_extension_is_reported(client: Redlock, events: Events) -> None:
    lease = client.acquire("k")
    lease.extend()
    [details] = of_kind(events, ExtendDetails)
    assert (details.keys, details.outcome) == (("k",), Outcome.GRANTED)
    assert details.fencing_token == lease.fencing_token
    assert 0 < details.expires_in <= lease.ttl


def test_a_loss_is_reported_once_with_its_reason(client: Redlock, events: Events) -> None:
    lease = client.acquire("k")
    lease.mark_lost(LossReason.GONE)
    lease.mark_lost(LossReason.EXPIRED)
    [details] = of_kind(events, LossDetails)
    assert (details.keys, details.reason) == (("k",), LossReason.GONE)
    assert details.held_for > 0


@pytest.mark.parametrize("lost", [False, True])
def test_a_release_tells_whether_the_lease_was_held(
    client: Redlock, events: Events, lost: bool
) -> None:
    lease = client.acquire("k")
    if lost:
        lease.mark_lost()
    lease.release()
    lease.release()
    [details] = of_kind(events, ReleaseDetails)
    assert (details.keys, details.held) == (("k",), not lost)


def test_a_reservation_is_reported_with_the_keys_that_users_write(
    client: Redlock, events: Events
) -> None:
    reserve(client)
    [details] = of_kind(events, AcquireDetails)
    assert (details.keys, details.outcome) == (("k",), Outcome.GRANTED)


def test_a_lock_whose_report_is_interrupted_is_released(
    client: Redlock, interrupt: Interrupted
) -> None:
    end = interrupt(AcquireDetails)
    with pytest.raises(Interrupt):
        client.acquire("k", at_least_for=5.0)
    end()
    assert client.acquire("k").is_valid


def test_a_reservation_whose_report_is_interrupted_is_cancelled(
    client: Redlock, interrupt: Interrupted
) -> None:
    end = interrupt(AcquireDetails)
    with pytest.raises(Interrupt):
        reserve(client)
    end()
    assert client.acquire("k").is_valid


def test_a_reservation_whose_report_is_interrupted_is_given_back(
    client: Redlock, interrupt: Interrupted
) -> None:
    older = reserve(client)
    end = interrupt(AcquireDetails)
    with pytest.raises(Interrupt):
        reserve(client, previous=older)
    end()
    holder = client.holder("k")
    assert holder is not None
    assert holder.owner == older.owner


@pytest.mark.parametrize("release", [Lease.release, lambda lease: release_with(lease, {})])
def test_a_release_whose_report_is_interrupted_is_complete(
    client: Redlock, interrupt: Interrupted, release: Callable[[Lease], bool]
) -> None:
    lease = client.acquire("k")
    end = interrupt(ReleaseDetails)
    with pytest.raises(Interrupt):
        release(lease)
    end()
    assert lease not in client_of(client)._leases
    assert client.acquire("k").is_valid
