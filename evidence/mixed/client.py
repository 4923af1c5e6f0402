"""
One client of whatever version of the package `PYTHONPATH` names; see `python -m evidence.mixed`.

It holds locks for a given time and counts in a Redis server what it did and what it saw.
"""

from __future__ import annotations

import random
import sys
import time

import redis

from celery_redlock import LockNotAcquired, Redlock, observe

KEYS = tuple(f"shared {number}" for number in range(5))


def hold(client: Redlock, store: redis.Redis, key: str, who: str) -> None:
    """Hold a lock for some time, and note whether anybody else holds it or has held it later."""
    with client.lock(key, ttl=2.0, wait=1.0) as lease:
        if store.incr(f"inside:{key}") != 1:
            store.incr("overlaps")
        last = int(store.getset(f"token:{key}", lease.fencing_token) or 0)
        if last >= lease.fencing_token:
            store.incr("disorder")
        # One in fifty holds is long enough for the watchdog to extend its lease twice.
        time.sleep(1.5 if random.random() < 0.02 else 0.002)
        if not lease.is_valid:
            store.incr("losses")
        store.decr(f"inside:{key}")
    store.incr(f"holds:{who}")


def main() -> None:
    """Run until the time is over."""
    who, nodes, url, seconds = sys.argv[1:]
    store = redis.Redis.from_url(url)
    observe(lambda details: note(store, type(details).__name__))
    until = time.monotonic() + float(seconds)
    with Redlock(nodes, guard=True) as client:
        while time.monotonic() < until:
            try:
                hold(client, store, random.choice(KEYS), who)
            except LockNotAcquired:
                store.incr(f"refusals:{who}")


def note(store: redis.Redis, kind: str) -> None:
    """Count a quarantined node."""
    if kind == "QuarantineDetails":
        store.incr("quarantines")


if __name__ == "__main__":
    main()
