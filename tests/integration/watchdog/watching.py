"""Somebody who has leases extended, waits for that, or notes that one is lost."""

from __future__ import annotations

from dataclasses import dataclass, field

from celery_redlock import Lease
from celery_redlock.core.lease import holding_of
from celery_redlock.core.watchdog import process_watchdog
from tests.support.waiting import wait_until


@dataclass
class Told:
    """What a lease's callback was told, and when on the lease's clock."""

    leases: list[Lease] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def __call__(self, lease: Lease) -> None:
        self.times.append(holding_of(lease).now())
        self.leases.append(lease)


def wait_for_more(lease: Lease) -> None:
    trust = holding_of(lease).valid_until
    wait_until(lambda: holding_of(lease).valid_until > trust or lease.lost)


def renewed(lease: Lease, times: int = 1) -> None:
    for _ in range(times):
        wait_for_more(lease)
    assert lease.lost is None


def extend_now(*leases: Lease, hold_is_over: bool = False) -> None:
    """Let the watchdog extend leases at once, or report them as held for too long."""
    dog = process_watchdog()
    with dog._lock:
        for lease in leases:
            watch = dog._watches[holding_of(lease)]
            if hold_is_over:
                watch.hold_until = 0.0
            watch.extend_at = 0.0
            dog._push(dog._heap, watch.due, watch)
        assert dog._thread is not None
        dog._thread.wakeup.wake()
