"""Leases of keys with rates, which hold nothing that could be lost, and with limits."""

from __future__ import annotations

import logging
import math

import pytest

from celery_redlock import Limit, LossReason, Rate, Redlock
from celery_redlock.core.lease import holding_of
from tests.support.waiting import wait_until


def test_in_a_block_it_never_expires(redlock: Redlock, caplog: pytest.LogCaptureFixture) -> None:
    with redlock.lock(Rate("block", "9/h"), ttl=0.2) as lease:
        assert lease.expires_in == math.inf
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_without_an_end_it_may_be_held_for_ever(redlock: Redlock) -> None:
    with redlock.lock(Rate("endless", "9/h"), ttl=0.2, max_hold=math.inf) as lease:
        assert lease.expires_in == math.inf


def test_it_is_lost_when_its_hold_ends(redlock: Redlock) -> None:
    with redlock.lock(Rate("hold", "9/h"), max_hold=0.05) as lease:
        wait_until(lambda: lease.lost is LossReason.MAX_HOLD)


def test_it_keeps_no_other_lease_from_its_extension(redlock: Redlock) -> None:
    rate = Rate("others", "9/h")
    with redlock.lock(rate, max_hold=math.inf), redlock.lock("plain", ttl=5) as lease:
        until = holding_of(lease).valid_until
        wait_until(lambda: holding_of(lease).valid_until > until)


def test_without_a_block_it_ends_with_its_ttl(redlock: Redlock) -> None:
    lease = redlock.acquire(Rate("bare", "9/h"), ttl=0.2)
    wait_until(lambda: not lease.is_valid)


def test_it_can_be_extended(redlock: Redlock) -> None:
    lease = redlock.acquire(Rate("extended", "9/h"), ttl=1)
    lease.extend(20)
    assert lease.expires_in > 10


def test_a_lease_with_a_limit_is_extended(redlock: Redlock) -> None:
    keys = [Rate("beside", "9/h"), Limit("limit", 2)]
    with redlock.lock(keys, ttl=5) as lease:
        until = holding_of(lease).valid_until
        wait_until(lambda: holding_of(lease).valid_until > until)
        assert redlock.holders(keys[1]).count(None) == 1


# Slots.


def test_a_lease_without_a_limit_has_no_slot(redlock: Redlock) -> None:
    lease = redlock.acquire("seats")

    assert (lease.slot, lease.slots) == (None, {})


def test_a_slot_is_found_by_its_key(redlock: Redlock) -> None:
    lease = redlock.acquire(["account:7", Limit("tenant", 1), Limit("seats", 5)])

    assert lease.slots == {"tenant": 0, "seats": lease.slots["seats"]}
    assert lease.slots["seats"] in range(5)


def test_a_rate_before_a_limit_has_no_slot_that_the_lease_holds(redlock: Redlock) -> None:
    lease = redlock.acquire([Rate("calls", "100/m"), Limit("seats", 1)])

    assert (lease.slot, lease.slots) == (0, {"seats": 0})


def test_a_rate_does_not_hide_the_slot_of_a_limit_on_the_same_key(redlock: Redlock) -> None:
    lease = redlock.acquire([Limit("seats", 1), Rate("seats", "100/m")])

    assert lease.slots == {"seats": 0}
