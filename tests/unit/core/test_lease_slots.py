"""Which slots a lease has, of keys with a limit."""

from __future__ import annotations

from celery_redlock import Limit, Rate, Redlock


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
