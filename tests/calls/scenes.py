"""
The scenes: each sends calls, and counts how often what is promised about them did not hold.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from celery import chain, chord, group, uuid

from tests.calls.app import MODES, UNIQUE, collect, resend, stage
from tests.calls.stage import Setup, journal, wait_for_ends, worker

Figures = dict[str, Any]

#: Seconds that a body takes.
BRIEF = 0.01

setup = Setup(**stage["setup"])


def _in_a_group(step: Any, scene: str) -> list[Any]:
    return list(group([step])().results)


def _in_a_chord(step: Any, scene: str) -> list[Any]:
    body = chord([step])(collect.s(scene))
    return [body, *body.parent.results]


def _with_a_link(step: Any, scene: str) -> list[Any]:
    return [step.apply_async(link=collect.si([], scene))]


def _in_a_chain(step: Any, scene: str) -> list[Any]:
    result = chain(step, collect.si([], scene))()
    return [result, result.parent]


def _with_a_known_id(step: Any, scene: str) -> list[Any]:
    return [step.apply_async(task_id=uuid())]


TIES: dict[str, Callable[[Any, str], list[Any]]] = {
    "group": _in_a_group,
    "chord": _in_a_chord,
    "link": _with_a_link,
    "chain": _in_a_chain,
    "known id": _with_a_known_id,
}


def pairs(count: int) -> Figures:
    """Send each key twice, the second time in a way that has to be sent; one body has to run."""
    keys: dict[str, tuple[str, str]] = {}
    results = []
    with worker(setup):
        for number in range(count):
            for mode in MODES:
                for tie, send in TIES.items():
                    key = f"{mode}-{tie}-{number}"
                    keys[key] = (mode, tie)
                    step = UNIQUE[mode, "existing"].si(key, "pairs", BRIEF)
                    results += send(step, "pairs") if number % 2 else [step.delay()]
                    results += send(step, "pairs")
        wait_for_ends(results)
    bodies = _bodies("pairs")
    wrong = Counter(keys[key] for key in keys if len(bodies[key]) != 1)
    return {"pairs": len(keys), "not one body": sum(wrong.values()), **_listed(wrong)}


def replaced(count: int) -> Figures:
    """Send each key three times while no worker is up; only the last may run."""
    keys, results = [], []
    for number in range(count):
        for mode in MODES[:3]:
            key = f"{mode}-{number}"
            keys.append(key)
            for call in (1, 2, 3):
                task = UNIQUE[mode, "replace"]
                results.append(task.apply_async((key, "replaced", BRIEF, call)))
    with worker(setup):
        wait_for_ends(results)
    bodies = _bodies("replaced")
    wrong = Counter(str([call for _, call in bodies[key]]) for key in keys)
    del wrong["[3]"]
    return {"keys": len(keys), "not only the last": sum(wrong.values()), **_listed(wrong)}


def after_the_result(count: int) -> Figures:
    """Call a key again as soon as its result is read; each call has to run."""
    dropped = Counter[str]()
    with worker(setup):
        for mode in MODES[:3]:
            task = UNIQUE[mode, "existing"]
            last = None
            for number in range(count):
                sent = task.delay(f"{mode}-again", "after the result", 0.0, number)
                dropped[mode] += bool(getattr(sent, "is_duplicate", False))
                sent.get(timeout=60, interval=0.0005)
                last = sent
        assert last is not None
    calls = count * 3
    bodies = sum(map(len, _bodies("after the result").values()))
    wrong = Counter({mode: number for mode, number in dropped.items() if number})
    return {"calls": calls, "bodies": bodies, "dropped": sum(wrong.values()), **_listed(wrong)}


def after_the_end(count: int) -> Figures:
    """Call a key again from what its end has sent: a link, a chord's body, a chain's next step."""
    scene = "after the end"
    keys, results = {}, []
    with worker(setup):
        for number in range(count):
            for mode in MODES[:3]:
                task = UNIQUE[mode, "existing"]
                for by in ("link", "chord", "chain"):
                    key = f"{mode}-{by}-{number}"
                    keys[key] = (mode, by)
                    step = task.si(key, scene, BRIEF, 1)
                    again = resend.s(mode, key, scene, 2)
                    if by == "link":
                        results.append(step.apply_async(link=again))
                    elif by == "chord":
                        results.append(chord([step])(again))
                    else:
                        results.append(chain(step, again)())
        wait_for_ends(results)
        _wait_for(scene, "sent", len(keys))
        _wait_for(scene, "ended", len(keys), then=2 * len(keys))
    bodies = _bodies(scene)
    wrong = Counter(keys[key] for key in keys if len(bodies[key]) != 2)
    return {"calls": len(keys), "not run again": sum(wrong.values()), **_listed(wrong)}


def revoked(count: int) -> Figures:
    """Revoke the call that waits, and call again: only the second may run."""
    keys, results = [], []
    for number in range(count):
        for mode in MODES:
            task, key = UNIQUE[mode, "existing"], f"{mode}-{number}"
            keys.append(key)
            arguments = (key, "revoked", BRIEF)
            results.append(task.apply_async((*arguments, 1), countdown=number % 2))
            task.revoke_queued(*arguments, 1)
            results.append(task.apply_async((*arguments, 2)))
    with worker(setup):
        wait_for_ends(results)
    bodies = _bodies("revoked")
    wrong = Counter(str([call for _, call in bodies[key]]) for key in keys)
    del wrong["[2]"]
    return {"keys": len(keys), "not only the second": sum(wrong.values()), **_listed(wrong)}


SCENES: dict[str, Callable[[int], Figures]] = {
    "pairs": pairs,
    "replaced": replaced,
    "after the result": after_the_result,
    "after the end": after_the_end,
    "revoked": revoked,
}

#: What must be zero.
FAULTS = (
    "not one body",
    "not only the last",
    "dropped",
    "not run again",
    "not only the second",
)


def _bodies(scene: str) -> dict[str, list[tuple[str, int]]]:
    """Return the bodies of each key in the order in which they began: task id and number."""
    found: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for what, *entry in journal(stage["journal"], scene):
        if what == "begun":
            key, task_id, number = entry
            found[key].append((task_id, number))
    return found


def _wait_for(scene: str, what: str, least: int, then: int = 0) -> None:
    """Wait for so many entries, and a little for the rest: what is missing is the fault."""
    deadline = time.monotonic() + 60
    quiet = 5.0
    while time.monotonic() < deadline:
        found = sum(entry[0] == what for entry in journal(stage["journal"], scene))
        if found >= max(least, then):
            return
        if found >= least:
            quiet -= 0.2
            if quiet <= 0:
                return
        time.sleep(0.2)


def _listed(wrong: Counter[Any]) -> Figures:
    shown = {
        " ".join(map(str, what)) if isinstance(what, tuple) else str(what): number
        for what, number in wrong.most_common(8)
    }
    return {"where": shown} if shown else {}
