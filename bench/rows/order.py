"""
In which order tasks of one key run, and how long keys are idle, in real prefork workers.

`python -m bench order` plays each scene several times and gives the worst of all runs. A pause is a
time in which no body begins, although all keys that a waiting call needs are free.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence

from bench.results import Goal, Result
from bench.rows.waiting import Body, Scene, worker
from celery_redlock.testing import LocalCluster

RUNS, QUICK_RUNS = 20, 3

#: The keys that each call needs.
_PAIRS = (("x", "y"), ("y", "z"), ("x", "z")) * 15
_KEYS = (("x",), ("y",), ("z",)) * 30
_PAIRS_OF_SIX = tuple(itertools.combinations("abcdef", 2)) * 4

#: The slots of the limit that `bench.key_and_slot` needs.
_SLOTS = 2

_SECONDS = Goal(value=0.2, limit="most", unit=" s")


def order(quick: bool) -> list[Result]:
    """Measure pauses, order, and what the order costs."""
    runs = QUICK_RUNS if quick else RUNS
    with LocalCluster(5) as nodes, worker(nodes) as scene:
        pauses = [_longest_pause(scene.run("bench.hot", 80, 0.2)) for _ in range(max(1, runs // 4))]
        pauses += [_longest_pause(scene.run("bench.hot", 40, 0.05)) for _ in range(runs)]
    with LocalCluster(3) as nodes, worker(nodes, workers=2) as scene:
        scene.run("bench.hot", 100, 0.02)  # the processes connect
        unfair = [scene.run("bench.hot", 100, 0.02) for _ in range(runs)]
        fair = [scene.run("bench.hot_fair", 100, 0.02) for _ in range(runs)]
        pairs = _pauses(scene, "bench.pair", _PAIRS, runs)
        many = _pauses(scene, "bench.pair", _PAIRS_OF_SIX, runs)
        mixed = _pauses(scene, "bench.key_and_slot", _KEYS, runs, slots=_SLOTS)
        rated = _pauses_of_rate(scene, max(1, runs // 4))
    return [
        _result("bodies of 0.2 s and of 50 ms: longest pause between two", pauses, _SECONDS),
        _result("tasks that need two of three keys: longest pause", pairs, _SECONDS),
        _result("tasks that need two of six keys: the same", many, _SECONDS),
        _result("tasks that need a key and one of two slots: the same", mixed, _SECONDS),
        _result("200 tasks with a rate of 10/s: the same", rated, _SECONDS),
        _result(
            "lock_fair, 100 bodies of 20 ms, two workers: time, to that without",
            [_took(one) / _took(other) for one, other in zip(fair, unfair, strict=True)],
            Goal(value=1.3, limit="most"),
        ),
        _result(
            "lock_fair: messages by which one was overtaken, at most",
            [float(_most_overtaken(bodies)) for bodies in fair],
            Goal(value=8, limit="most"),
        ),
        _result(
            "the same without lock_fair",
            [float(_most_overtaken(bodies)) for bodies in unfair],
            Goal(value=20, limit="most"),
        ),
    ]


def _result(what: str, values: list[float], goal: Goal) -> Result:
    middle = statistics.median(values)
    detail = f"of {len(values)} runs the worst; median {middle:.3g}, least {min(values):.3g}"
    return Result(row="order", what=what, goal=goal, values=[max(values)], detail=detail)


def _pauses(
    scene: Scene,
    task: str,
    needed: Sequence[tuple[str, ...]],
    runs: int,
    *,
    slots: int | None = None,
) -> list[float]:
    """Send a call for each of these tuples of keys; return the longest pause of each run."""
    found = []
    for _ in range(runs):
        numbers = [scene.send_with(task, 0.1, keys) for keys in needed]
        bodies = scene.bodies(range(numbers[0], numbers[-1] + 1))
        keys_of = dict(zip(numbers, needed, strict=True))
        found.append(_longest_pause(bodies, [keys_of[body.number] for body in bodies], slots))
    return found


def _pauses_of_rate(scene: Scene, runs: int) -> list[float]:
    """Send 200 calls with a rate of 10/s; return the longest pause of each run."""
    found = []
    for _ in range(runs):
        begun = [body.begun for body in scene.run("bench.backlogged", 200, 0.0)]
        free = [max(begun[at - 1], begun[at - 10] + 1.0) for at in range(10, len(begun))]
        found.append(max(at - since for at, since in zip(begun[10:], free, strict=True)))
    return found


def _took(bodies: list[Body]) -> float:
    return bodies[-1].ended - bodies[0].begun


def _longest_pause(
    bodies: Sequence[Body],
    needed: Sequence[tuple[str, ...]] | None = None,
    slots: int | None = None,
) -> float:
    """
    Return for how long no body began, at most, although one could have.

    Args:
        bodies: all of them.
        needed: the keys of each; one key for all by default.
        slots: how many may run at once, if that is limited.
    """
    needed = needed or [("hot",)] * len(bodies)
    moves = [(body.begun, 1, keys) for body, keys in zip(bodies, needed, strict=True)]
    moves += [(body.ended, -1, keys) for body, keys in zip(bodies, needed, strict=True)]
    waiting, held, running = Counter(needed), Counter[str](), 0
    pause, since = 0.0, None
    for at, change, keys in sorted(moves):
        if since is not None:
            pause = max(pause, at - since)
        if change > 0:
            waiting[keys] -= 1
        held.update(dict.fromkeys(keys, change))
        running += change
        could_begin = (slots is None or running < slots) and any(
            count and not any(held[key] for key in others) for others, count in waiting.items()
        )
        if not could_begin:
            since = None
        elif since is None or change > 0:
            since = at
    return pause


def _most_overtaken(bodies: list[Body]) -> int:
    """Return by how many that were sent later a message was overtaken, at most."""
    numbers = [body.number for body in bodies]
    return max(sum(later > own for later in numbers[:at]) for at, own in enumerate(numbers))
