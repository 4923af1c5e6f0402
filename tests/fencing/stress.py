"""
Several processes that take turns under short leases, and are often paused past them.

Each holder claims the resource with its token, reads the state once, and then writes it again and
again, each time with one more write of its own counted in it. So if another process overwrites an
accepted write without having seen it, that write is missing from the counts in the end.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tenacity import wait_random

from celery_redlock import LockNotAcquired, Redlock, StaleFencingToken
from tests.fencing.fences import Guarded
from tests.support.waiting import TIMEOUT

LEASE = 0.25
PAUSES = (1.2 * LEASE, 2 * LEASE)
BURSTS = (20, 80)
#: A release wakes those that wait; they need to look only for leases that end while the holder is
#: paused, and more often than that would take the processors from who writes.
RETRY = wait_random(0.0, 0.2)
LOCK_TIMEOUT = 3 * TIMEOUT


Opener = Callable[[], AbstractContextManager[Guarded]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """
    The work of each process.

    Attributes:
        processes: how many there are.
        writes: how many writes each of them tries.
        pausing: the part of the leases in which the holder is paused before one of its writes.
    """

    processes: int = 8
    writes: int = 1000
    pausing: float = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """
    The writes of one process.

    Attributes:
        accepted: how many the fence accepted.
        refused: how many it refused as stale.
        token: the token of its last accepted write.
        content: the content of that write.
    """

    accepted: int
    refused: int
    token: int
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The writes of all processes, and the final content."""

    tallies: Sequence[Tally]
    content: bytes

    @property
    def counted(self) -> list[int]:
        """The writes of each process that the content counts."""
        counts: list[int] = json.loads(self.content)["counts"]
        return counts

    @property
    def accepted(self) -> list[int]:
        """The accepted writes of each process."""
        return [tally.accepted for tally in self.tallies]

    @property
    def refused(self) -> int:
        """How many writes were refused."""
        return sum(tally.refused for tally in self.tallies)

    @property
    def highest(self) -> Tally:
        """The process whose last write had the highest token."""
        return max(self.tallies, key=lambda tally: tally.token)


def run_stress(urls: Sequence[str], open_store: Opener, load: Load) -> Outcome:
    """
    Let all processes write, and return the outcome.

    Args:
        urls: the lock nodes.
        open_store: opens the store in each process, so it must be picklable.
        load: how much is written.
    """
    context = multiprocessing.get_context("spawn")
    with context.Pool(load.processes) as pool:
        calls = [(number, list(urls), open_store, load) for number in range(load.processes)]
        tallies = pool.starmap(_take_turns, calls, chunksize=1)
        pool.close()
        pool.join()
    with open_store() as store:
        content = store.read()
    assert content is not None
    return Outcome(tallies=tallies, content=content)


def check(outcome: Outcome, load: Load) -> None:
    """No accepted write is lost, the newest one is left, and there were stale ones to refuse."""
    assert outcome.counted == outcome.accepted
    assert outcome.content == outcome.highest.content
    assert sum(outcome.accepted) + outcome.refused == load.processes * load.writes
    assert outcome.refused > 0


def _take_turns(number: int, urls: list[str], open_store: Opener, load: Load) -> Tally:
    chance = random.Random(number)
    accepted = refused = token = 0
    content = b""
    with Redlock(urls, ttl=LEASE, max_ttl=1.0) as redlock, open_store() as store:
        while accepted + refused < load.writes:
            try:
                lease = redlock.acquire("stress", wait=LOCK_TIMEOUT, retry=RETRY)
            except LockNotAcquired as exc:
                raise AssertionError(f"no lock within {LOCK_TIMEOUT} s") from exc
            burst = min(chance.randint(*BURSTS), load.writes - accepted - refused)
            pause_at = chance.randrange(burst) if chance.random() < load.pausing else None
            try:
                store.claim(lease.fencing_token)
                state = _state(store, load, lease.fencing_token)
                for step in range(burst):
                    if step == pause_at:
                        time.sleep(chance.uniform(*PAUSES))
                    state["counts"][number] += 1
                    written = json.dumps(state).encode()
                    store.write(written, lease.fencing_token)
                    accepted, token, content = accepted + 1, lease.fencing_token, written
            except StaleFencingToken:
                # Also if the claim is refused: the lease had expired before it arrived.
                refused += 1
            finally:
                lease.release()
    return Tally(accepted=accepted, refused=refused, token=token, content=content)


def _state(store: Guarded, load: Load, token: int) -> dict[str, Any]:
    content = store.read()
    if content is None:
        return {"token": token, "counts": [0] * load.processes}
    return {**json.loads(content), "token": token}
