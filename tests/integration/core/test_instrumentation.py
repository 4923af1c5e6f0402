"""What receivers get of each lock, on memory nodes and on servers, in threads and event loops."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_redlock import LockContended, LossReason, Redlock
from celery_redlock.core import Lease, client_of
from celery_redlock.core.instrumentation import (
    AcquireDetails,
    Details,
    ExtendDetails,
    LossDetails,
    Outcome,
    ReleaseDetails,
    observe,
)
from celery_redlock.core.lease import release_with

Events = list[Details]
_names = itertools.count()


def fresh_nodes() -> list[str]:
    name = next(_names)
    return [f"memory://observed-anywhere-{name}-{node}" for node in range(3)]


@pytest.fixture
def events() -> Iterator[Events]:
    seen: Events = []
    forget = observe(seen.append)
    yield seen
    forget()


@pytest.fixture(params=["memory", "servers"])
def client(request: pytest.FixtureRequest) -> Iterator[Redlock]:
    if request.param == "memory":
        nodes = fresh_nodes()
    else:
        nodes = request.getfixturevalue("redlock_cluster_factory")(3).urls
    with Redlock(nodes, node_timeout=2.0, guard=False) as redlock:
        redlock.acquire("connects", wait=10.0).release()
        yield redlock


def of_kind(events: Events, kind: type) -> list[Any]:
    return [event for event in events if type(event) is kind]


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
    client_of(client).reserve(
        [client_of(client).key_of("k").stored], ttl=5.0, grace=5.0, label="", retry_for=5.0
    )
    [details] = of_kind(events, AcquireDetails)
    assert (details.keys, details.outcome) == (("k",), Outcome.GRANTED)


class Interrupt(BaseException):
    """As a signal handler or a time limit of gevent raises it."""


@pytest.fixture
def interrupt() -> Iterator[Callable[[type], Callable[[], None]]]:
    """Begin to raise `Interrupt` at events of a kind; return a function that ends it."""
    ends: list[Callable[[], None]] = []

    def begin(kind: type) -> Callable[[], None]:
        def receiver(details: Details) -> None:
            if type(details) is kind:
                raise Interrupt

        ends.append(observe(receiver))
        return ends[-1]

    yield begin
    for end in ends:
        end()


Interrupted = Callable[[type], Callable[[], None]]


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
        client_of(client).reserve(
            [client_of(client).key_of("k").stored], ttl=5.0, grace=5.0, label="", retry_for=5.0
        )
    end()
    assert client.acquire("k").is_valid


def test_a_reservation_whose_report_is_interrupted_is_given_back(
    client: Redlock, interrupt: Interrupted
) -> None:
    keys, reserve = [client_of(client).key_of("k").stored], client_of(client).reserve
    older = reserve(keys, ttl=5.0, grace=5.0, label="", retry_for=5.0).reservation
    end = interrupt(AcquireDetails)
    with pytest.raises(Interrupt):
        reserve(
            keys,
            ttl=5.0,
            grace=5.0,
            label="",
            retry_for=5.0,
            previous=older,
        )
    end()
    [holder] = client_of(client).inspect(keys)
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
