"""Holders of different slots of one key write through every fence, each under its slot's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from celery_redlock import Lease, Limit, Redlock
from celery_redlock.errors import StaleFencingToken
from celery_redlock.fencing import slot_resource
from tests.fencing.fences import Opener
from tests.support.waiting import TIMEOUT, wait_until

#: Seconds; the shortest that there is.
SHORT = 0.2


@pytest.fixture
def acquire(redlock_memory_nodes: list[str]) -> Iterator[Callable[..., Lease]]:
    """Acquire a slot of a key that two may hold."""
    with Redlock(redlock_memory_nodes) as redlock:
        yield lambda **options: redlock.acquire(Limit("seats", 2), **options)


def seat_of(lease: Lease) -> str:
    return slot_resource("seat", lease.slot)


def test_the_holders_of_two_slots_write_in_any_order(
    opener: Opener, acquire: Callable[..., Lease]
) -> None:
    older, newer = sorted((acquire(), acquire()), key=lambda lease: lease.fencing_token)

    opener(seat_of(newer)).write(b"newer", newer.fencing_token)
    opener(seat_of(older)).write(b"older", older.fencing_token)

    assert opener(seat_of(newer)).read() == b"newer"
    assert opener(seat_of(older)).read() == b"older"


def test_under_one_name_for_both_slots_a_valid_holder_is_refused(
    opener: Opener, acquire: Callable[..., Lease]
) -> None:
    older, newer = sorted((acquire(), acquire()), key=lambda lease: lease.fencing_token)

    opener("seat").write(b"newer", newer.fencing_token)

    with pytest.raises(StaleFencingToken):
        opener("seat").write(b"older", older.fencing_token)
    assert older.is_valid


def test_a_holder_whose_slot_has_a_later_holder_is_refused(
    opener: Opener, acquire: Callable[..., Lease]
) -> None:
    acquire()
    late = acquire(ttl=SHORT)
    successor = acquire(wait=TIMEOUT)

    opener(seat_of(successor)).write(b"successor", successor.fencing_token)

    with pytest.raises(StaleFencingToken):
        opener(seat_of(late)).write(b"late", late.fencing_token)
    assert opener(seat_of(late)).read() == b"successor"


def test_the_holder_of_another_slot_still_writes_after_that(
    opener: Opener, acquire: Callable[..., Lease]
) -> None:
    other = acquire()
    late = acquire(ttl=SHORT)
    wait_until(lambda: not late.is_valid)
    successor = acquire(wait=TIMEOUT)
    opener(seat_of(successor)).write(b"successor", successor.fencing_token)

    opener(seat_of(other)).write(b"other", other.fencing_token)

    assert opener(seat_of(other)).read() == b"other"
