"""Holders of different slots of one key write through every fence, each under its slot's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celery_redlock import Lease, Limit, Redlock
from celery_redlock.errors import StaleFencingToken
from celery_redlock.fencing import slot_resource
from celery_redlock.testing.plugin import ClusterFactory
from tests.fencing.fences import KINDS, Guarded
from tests.support.waiting import TIMEOUT, wait_until

#: Seconds; the shortest that there is.
SHORT = 0.2


@pytest.fixture(params=KINDS)
def guarded(
    request: pytest.FixtureRequest, tmp_path: Path, redlock_cluster_factory: ClusterFactory
) -> Iterator[Callable[[str], Guarded]]:
    """Any resource of one store, by its name."""
    on_redis = request.param.startswith("redis")
    url = redlock_cluster_factory(1).urls[0] if on_redis else ""
    with KINDS[request.param](url, tmp_path) as at:
        yield at


@pytest.fixture
def acquire(redlock_memory_nodes: list[str]) -> Iterator[Callable[..., Lease]]:
    """Acquire a slot of a key that two may hold."""
    with Redlock(redlock_memory_nodes) as redlock:
        yield lambda **options: redlock.acquire(Limit("seats", 2), **options)


def seat_of(lease: Lease) -> str:
    return slot_resource("seat", lease.slot)


def test_the_holders_of_two_slots_write_in_any_order(
    guarded: Callable[[str], Guarded], acquire: Callable[..., Lease]
) -> None:
    older, newer = sorted((acquire(), acquire()), key=lambda lease: lease.fencing_token)

    guarded(seat_of(newer)).write(b"newer", newer.fencing_token)
    guarded(seat_of(older)).write(b"older", older.fencing_token)

    assert guarded(seat_of(newer)).read() == b"newer"
    assert guarded(seat_of(older)).read() == b"older"


def test_under_one_name_for_both_slots_a_valid_holder_is_refused(
    guarded: Callable[[str], Guarded], acquire: Callable[..., Lease]
) -> None:
    older, newer = sorted((acquire(), acquire()), key=lambda lease: lease.fencing_token)

    guarded("seat").write(b"newer", newer.fencing_token)

    with pytest.raises(StaleFencingToken):
        guarded("seat").write(b"older", older.fencing_token)
    assert older.is_valid


def test_a_holder_whose_slot_has_a_later_holder_is_refused(
    guarded: Callable[[str], Guarded], acquire: Callable[..., Lease]
) -> None:
    acquire()
    late = acquire(ttl=SHORT)
    successor = acquire(wait=TIMEOUT)

    guarded(seat_of(successor)).write(b"successor", successor.fencing_token)

    with pytest.raises(StaleFencingToken):
        guarded(seat_of(late)).write(b"late", late.fencing_token)
    assert guarded(seat_of(late)).read() == b"successor"


def test_the_holder_of_another_slot_still_writes_after_that(
    guarded: Callable[[str], Guarded], acquire: Callable[..., Lease]
) -> None:
    other = acquire()
    late = acquire(ttl=SHORT)
    wait_until(lambda: not late.is_valid)
    successor = acquire(wait=TIMEOUT)
    guarded(seat_of(successor)).write(b"successor", successor.fencing_token)

    guarded(seat_of(other)).write(b"other", other.fencing_token)

    assert guarded(seat_of(other)).read() == b"other"
