"""
The scene of debounced bursts: calls of each key with random pauses, some before a worker is up.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from evidence.calls.app import AT_MOST, DEBOUNCED, QUIET, stage
from evidence.calls.stage import Figures, Setup, journal, wait_for_ends, worker

SCENE = "debounced"

#: Bursts that are sent at a time, and the share of those that find no worker.
AT_ONCE = 16
UNATTENDED = 0.2

#: Longest calls of a burst, and longest pause between two, in parts of the time without a call.
CALLS = 8
PAUSE = 1.3

#: Seconds from when a body is due until it begins; more is no delivery any more.
DELIVERY = 10.0
#: Seconds between a worker's look at the nodes and the begin of the body, and reverse.
BLURRED = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call: when its publisher began and ended, in seconds since the epoch."""

    began: float
    ended: float
    result: Any


def debounced(count: int) -> Figures:
    """Send bursts; the newest call of each has to run, and every body when it is due."""
    unattended = max(1, round(count * UNATTENDED))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        send = partial(pool.map, _burst)
        alone = dict(enumerate(send(range(unattended))))
        with worker(Setup(**stage["setup"])):
            _wait_for(alone)  # so the worker is up when the others are sent
            attended = dict(enumerate(send(range(unattended, count)), unattended))
            _wait_for(attended)
    bodies: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for _, key, number, began in journal(stage["journal"], SCENE):
        bodies[key].append((number, began))
    broken, late = Counter[str](), 0.0
    for key, calls in alone.items():
        broken["of a burst without a worker, another call than the newest ran"] += [
            number for number, _ in bodies[str(key)]
        ] != [len(calls) - 1]
    for key, calls in attended.items():
        found, latest = _judged(calls, bodies[str(key)])
        broken += found
        late = max(late, latest)
    return Figures(
        calls=sum(map(len, (alone | attended).values())),
        bodies=sum(map(len, bodies.values())),
        broken=dict(+broken),
        late=late,
    )


def _wait_for(bursts: Mapping[int, Sequence[Call]]) -> None:
    wait_for_ends([call.result for calls in bursts.values() for call in calls])


def _burst(key: int) -> list[Call]:
    """Make the calls of one key, each with its number."""
    chance, calls = random.Random(key), list[Call]()
    for number in range(chance.randint(2, CALLS)):
        if calls:
            time.sleep(chance.uniform(0, PAUSE * QUIET))
        began = time.time()
        result = DEBOUNCED.delay(str(key), SCENE, number)
        calls.append(Call(began=began, ended=time.time(), result=result))
    return calls


def _judged(calls: list[Call], bodies: list[tuple[int, float]]) -> tuple[Counter[str], float]:
    """Return what is wrong with the bodies of a key, and how late the latest one began."""
    broken, late, before = Counter[str](), 0.0, -1
    numbers = [number for number, _ in bodies]
    broken["the newest did not run"] += numbers[-1:] != [len(calls) - 1]
    broken["an older one ran after a newer one, or again"] += numbers != sorted(set(numbers))
    for number, began in bodies:
        first, newest = calls[min(before + 1, number)], calls[number]
        due = max(newest.began, min(newest.began + QUIET, first.began + AT_MOST))
        broken["a body began early"] += began < due
        latest = max(newest.ended, min(newest.ended + QUIET, first.ended + AT_MOST))
        broken["a body began beyond its time"] += began > latest + DELIVERY
        late = max(late, began - latest)
        following = calls[number + 1 :][:1]
        broken["a call ran that a newer one had replaced"] += any(
            call.ended + BLURRED < began for call in following
        )
        before = number
    return broken, late
