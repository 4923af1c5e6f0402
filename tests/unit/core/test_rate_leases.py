"""A lease on rates alone holds nothing that could be lost."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from celery_redlock import Limit, Rate, Redlock
from tests.support.waiting import wait_until


@pytest.fixture
def redlock() -> Iterator[Redlock]:
    with Redlock("memory://rate-leases") as redlock:
        yield redlock


def outlast(redlock: Redlock, seconds: float) -> None:
    ends = redlock.transport.now() + seconds
    wait_until(lambda: redlock.transport.now() > ends)


def test_in_a_block_it_is_valid_to_the_end(
    redlock: Redlock, caplog: pytest.LogCaptureFixture
) -> None:
    with redlock.lock(Rate("block", "9/h"), ttl=0.2) as lease:
        outlast(redlock, 0.6)
        assert lease.is_valid
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_it_takes_no_other_lease_along(redlock: Redlock) -> None:
    with redlock.lock(Rate("others", "9/h"), ttl=0.2), redlock.lock("plain", ttl=0.2) as lease:
        outlast(redlock, 0.6)
        assert lease.is_valid


def test_without_a_block_it_ends_with_its_ttl(redlock: Redlock) -> None:
    lease = redlock.acquire(Rate("bare", "9/h"), ttl=0.2)
    wait_until(lambda: not lease.is_valid)


def test_it_can_be_extended(redlock: Redlock) -> None:
    lease = redlock.acquire(Rate("extended", "9/h"), ttl=1)
    lease.extend(20)
    assert lease.expires_in > 10


def test_its_release_leaves_the_slot(redlock: Redlock) -> None:
    rate = Rate("released", "1/h")
    redlock.acquire(rate).release()
    assert redlock.holders(rate)[0] is not None


def test_a_lease_with_a_limit_is_extended(redlock: Redlock) -> None:
    keys = [Rate("beside", "9/h"), Limit("limit", 2)]
    with redlock.lock(keys, ttl=0.2) as lease:
        outlast(redlock, 0.6)
        assert lease.is_valid
        assert redlock.holders(keys[1]).count(None) == 1
