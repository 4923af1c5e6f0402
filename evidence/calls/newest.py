"""
Races of calls of which the newest wins: each call of a key is sent after a random pause.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from celery import states
from redis import Redis, RedisError

from evidence.calls.app import newest as task
from evidence.calls.app import note, stage
from evidence.calls.stage import Figures, Setup, journal, wait_for_ends, worker
from tests.support.waiting import wait_until

#: Calls of each key, and the longest pause before each, in seconds.
CALLS, PAUSE = (2, 3, 4), 1.0
#: The last that is noted of a call, by the state of its result.
ENDS = {states.SUCCESS: "ended", states.FAILURE: "stopped", states.REVOKED: "sent"}

#: What happens to a race after its first call, if anything: it gets the scene and the key.
Fault = Callable[[str, str], None]

setup = Setup(**stage["setup"])


class Entry(NamedTuple):
    """What the journal notes of a call: it was sent, or its body begun, ended or was stopped."""

    what: str
    key: str
    task_id: str
    number: int
    at: float
    pid: int


def newest(count: int) -> Figures:
    """Race; the newest call runs to its end, the others stop or never begin, no two at once."""
    return _races("newest", count)


def newest_killed(count: int) -> Figures:
    """Kill the process of each race's first body."""
    return _races("newest killed", count, _kill)


def newest_minority(count: int) -> Figures:
    """Shut two of the five nodes down; they stay down for what is played after this."""
    for url in stage["conf"]["redlock_nodes"][:2]:
        try:
            Redis.from_url(url).shutdown(nosave=True)
        except RedisError:
            continue  # an earlier scene has shut it down
    return _races("newest minority", count)


def _races(scene: str, count: int, fault: Fault | None = None) -> Figures:
    # No more calls at once than there are processes, so that none waits for a process.
    at_once = max(1, setup.processes // max(CALLS))
    keys = [f"{scene} {number}" for number in range(count)]
    with worker(setup), ThreadPoolExecutor(at_once) as pool:
        results = list(pool.map(partial(_race, scene, fault), keys))
    found = _entries(scene)
    broken: Counter[str] = Counter()
    slowest = 0.0
    for key, of_key in zip(keys, results, strict=True):
        entries = [entry for entry in found if entry.key == key]
        broken.update(_broken(entries, of_key, was_killed=fault is not None))
        slowest = max(slowest, *_times_to_stop(entries), 0.0)
    return Figures(
        calls=sum(map(len, results)),
        bodies=sum(entry.what == "begun" for entry in found),
        broken=dict(broken),
        slowest=slowest,
    )


def _race(scene: str, fault: Fault | None, key: str) -> list[Any]:
    results = []
    for number in range(random.choice(CALLS)):
        if number:
            time.sleep(random.uniform(0.0, PAUSE))
        result = task.delay(key, scene, number)
        note(scene, "sent", key, result.id, number, time.time(), os.getpid())
        results.append(result)
        if fault is not None and not number:
            fault(scene, key)
    wait_for_ends(results)
    return results


def _kill(scene: str, key: str) -> None:
    def begun() -> list[int]:
        return [one.pid for one in _entries(scene) if (one.what, one.key) == ("begun", key)]

    os.kill(wait_until(begun)[0], signal.SIGKILL)


def _entries(scene: str) -> list[Entry]:
    return [Entry(*entry) for entry in journal(stage["journal"], scene)]


def _broken(entries: list[Entry], results: list[Any], *, was_killed: bool) -> Iterator[str]:
    runs = [entry for entry in entries if entry.what != "sent"]
    if was_killed:
        runs = [entry for entry in runs if entry.task_id != results[0].id]
    if any(one.what == other.what == "begun" for one, other in pairwise(runs)):
        yield "two bodies at once"
    if sorted(order := [one.number for one in runs if one.what == "begun"]) != order:
        yield "an older body after a newer one"
    last = runs[-1] if runs else None
    if last is None or (last.what, last.task_id) != ("ended", results[-1].id):
        yield "the newest did not run to its end"
    for result in results[1:] if was_killed else results:
        own = [entry.what for entry in entries if entry.task_id == result.id]
        if own[-1] != ENDS.get(result.state):
            yield f"a call that is {result.state} and was {own}"


def _times_to_stop(entries: list[Entry]) -> Iterator[float]:
    """Yield how long after a body could be asked to stop it was stopped."""
    begun = {entry.number: entry.at for entry in entries if entry.what == "begun"}
    for body in entries:
        if body.what == "stopped":
            newer = [one.at for one in entries if one.what == "sent" and one.number > body.number]
            yield body.at - max(begun[body.number], min(newer))
