"""No step of the watchdog is linear in leases that it does not touch."""

from __future__ import annotations

import math
from typing import Any

import pytest

from celery_redlock import Lease, Redlock
from celery_redlock.core.lease import holding_of
from celery_redlock.core.watchdog import Watchdog

#: Many times the number that one step may touch.
MANY = 2_000


class Counted:
    """A lease that counts how often the end of its validity is read."""

    reads = 0

    def __init__(self, lease: Lease) -> None:
        self._held = holding_of(lease)

    def __getattr__(self, name: str) -> Any:
        if name == "valid_until":
            Counted.reads += 1
        return getattr(self._held, name)


class StillWatchdog(Watchdog):
    """A watchdog without a thread."""

    def _start(self) -> None:
        pass

    def extend_due(self) -> int:
        """Extend one batch, and return of how many leases."""
        batches = self._take_due()
        for transport, watches in batches:
            self._extend_due(transport, watches)
        return sum(len(watches) for _, watches in batches)


@pytest.fixture
def watchdog() -> StillWatchdog:
    return StillWatchdog()


def watched(watchdog: StillWatchdog, redlock: Redlock, count: int, *, due: bool) -> None:
    lease = redlock.acquire(f"{count} {due}")
    for _ in range(count):
        counted: Any = Counted(lease)
        watchdog.watch(counted, math.inf)
        if due:
            watchdog._watches[counted].extend_at = 0.0
    if due:
        watchdog._heap[:] = [(0.0, *entry[1:]) for entry in watchdog._heap]


def test_an_extension_looks_at_no_lease_that_is_not_due(
    watchdog: StillWatchdog, redlock: Redlock
) -> None:
    watched(watchdog, redlock, 1, due=True)
    watched(watchdog, redlock, MANY, due=False)
    Counted.reads = 0
    assert watchdog.extend_due() == 1
    assert Counted.reads < MANY / 20


def test_one_step_takes_no_more_than_a_batch_of_those_that_are_due(
    watchdog: StillWatchdog, redlock: Redlock
) -> None:
    watched(watchdog, redlock, MANY, due=True)
    assert watchdog.extend_due() < MANY / 10


def test_leases_that_are_all_released_are_dropped_in_batches(
    watchdog: StillWatchdog, redlock: Redlock
) -> None:
    watched(watchdog, redlock, MANY, due=False)
    for lease in list(watchdog._watches):
        watchdog.unwatch(lease)
    assert not watchdog._drop_unwatched()
    assert len(watchdog._heap) > MANY / 2


def test_the_next_loss_is_that_of_the_lease_that_expires_first(
    watchdog: StillWatchdog, redlock: Redlock
) -> None:
    lease = redlock.acquire("short", ttl=5.0)
    short, long = holding_of(lease), holding_of(redlock.acquire("long", ttl=50.0))
    for one in (long, short):
        watchdog.watch(one, math.inf)
    assert watchdog._next_loss() == watchdog._watches[short].lost_at
    lease.extend(40.0)
    assert watchdog._next_loss() == watchdog._watches[short].lost_at
    watchdog.unwatch(short)
    assert watchdog._next_loss() == watchdog._watches[long].lost_at
    watchdog.unwatch(long)
    assert watchdog._next_loss() == math.inf
