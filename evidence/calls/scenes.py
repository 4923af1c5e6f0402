"""
The scenes: each sends calls, and counts how often what is promised about them did not hold.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any
from unittest import mock

from celery import chain, chord, group, uuid

from evidence.calls.app import IGNORED, MODES, UNIQUE, app, collect, resend, stage
from evidence.calls.bursts import debounced
from evidence.calls.newest import newest, newest_killed, newest_minority
from evidence.calls.stage import DRAIN, Figures, Setup, journal, wait_for_ends, worker
from tests.support.waiting import wait_until

#: Seconds that a body takes; and one that is likely to run when its message comes again.
BRIEF = 0.01
LONG = 0.2

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
    keys: dict[str, str] = {}
    results = []
    with worker(setup):
        for number, mode, (tie, send) in product(range(count), MODES, TIES.items()):
            key = f"{mode}-{tie}-{number}"
            keys[key] = f"{mode}, {tie}"
            step = UNIQUE[mode, "existing"].si(key, "pairs", BRIEF)
            results += send(step, "pairs") if number % 2 else [step.delay()]
            results += send(step, "pairs")
        wait_for_ends(results)
    bodies = _bodies("pairs")
    broken = Counter(kind for key, kind in keys.items() if len(bodies[key]) != 1)
    return _figures(2 * len(keys), bodies, broken)


def replaced(count: int) -> Figures:
    """Send each key three times while no worker is up; only the last may run."""
    keys: dict[str, str] = {}
    results = []
    for number, mode in product(range(count), MODES):
        key = f"{mode}-{number}"
        keys[key] = mode
        for call in (1, 2, 3):
            task = UNIQUE[mode, "replace"]
            results.append(task.apply_async((key, "replaced", BRIEF, call)))
    with worker(setup):
        wait_for_ends(results)
    return _only("replaced", keys, call=3, calls=3 * len(keys))


def after_the_result(count: int) -> Figures:
    """Call a key again as soon as its result is read; each call has to run."""
    scene = "after the result"
    with worker(setup):
        for mode, number in product(MODES[:3], range(count)):
            sent = UNIQUE[mode, "existing"].delay(mode, scene, 0.0, number)
            sent.get(timeout=DRAIN, interval=0.0005)
    bodies = _bodies(scene)
    broken = Counter[str]()
    for mode in MODES[:3]:
        run = Counter(number for _, number in bodies[mode])
        broken[mode] = sum(run[number] != 1 for number in range(count))
    return _figures(3 * count, bodies, broken)


def after_the_end(count: int) -> Figures:
    """Call a key again from what its end has sent: a link, a chord's body, a chain's next step."""
    scene = "after the end"
    keys, results = {}, []
    with worker(setup):
        for number, mode, by in product(range(count), MODES[:3], ("link", "chord", "chain")):
            key = f"{mode}-{by}-{number}"
            keys[key] = f"{mode}, {by}"
            step = UNIQUE[mode, "existing"].si(key, scene, BRIEF, 1)
            again = resend.s(mode, key, scene, 2).set(task_id=uuid())
            if by == "link":
                step.apply_async(link=again)
            elif by == "chord":
                chord([step])(again)
            else:
                chain(step, again)()
            results.append(app.AsyncResult(again.options["task_id"]))
        wait_for_ends(results)
        wait_for_ends([app.AsyncResult(result.get(timeout=DRAIN)) for result in results])
    bodies = _bodies(scene)
    broken = Counter(
        kind for key, kind in keys.items() if [call for _, call in bodies[key]] != [1, 2]
    )
    return _figures(2 * len(keys), bodies, broken)


def revoked(count: int) -> Figures:
    """Revoke the call that waits, and call again: only the second may run."""
    keys: dict[str, str] = {}
    results = []
    for number, mode in product(range(count), MODES):
        task, key = UNIQUE[mode, "existing"], f"{mode}-{number}"
        keys[key] = mode
        arguments = (key, "revoked", BRIEF)
        results.append(task.apply_async((*arguments, 1), countdown=number % 2))
        task.revoke_queued(*arguments, 1)
        results.append(task.apply_async((*arguments, 2)))
    with worker(setup):
        wait_for_ends(results)
    return _only("revoked", keys, call=2, calls=2 * len(keys))


def redelivered(count: int) -> Figures:
    """Deliver each message twice; one body has to run, and the other delivery has to end."""
    keys: dict[str, str] = {}
    with worker(setup), _each_message_twice():
        for number, mode in product(range(count), MODES):
            key = f"{mode}-{number}"
            keys[key] = mode
            UNIQUE[mode, "existing"].delay(key, "redelivered", LONG if number % 2 else BRIEF)
        # Neither body nor end is missing when each delivery has had one of the two.
        wait_until(
            lambda: sum(_ends("redelivered").values()) >= 2 * len(keys),
            DRAIN,
            message=lambda: f"each of {len(keys)} messages to end twice: {_ends('redelivered')}",
            interval=0.1,
        )
    bodies = _bodies("redelivered")
    broken = Counter(kind for key, kind in keys.items() if len(bodies[key]) != 1)
    return _figures(2 * len(keys), bodies, broken)


@contextlib.contextmanager
def _each_message_twice() -> Iterator[None]:
    send = app.amqp.send_task_message

    def send_twice(*args: Any, **options: Any) -> Any:
        send(*args, **options)
        return send(*args, **options)

    with mock.patch.object(app.amqp, "send_task_message", send_twice):
        yield


def _ends(scene: str) -> Counter[str]:
    """Return how many deliveries of each task's message have ended, with a body or without."""
    ended = [entry[2] for entry in journal(stage["journal"], scene) if entry[0] == "ended"]
    return Counter([*ended, *(task_id for (task_id,) in journal(stage["journal"], IGNORED))])


SCENES: dict[str, Callable[[int], Figures]] = {
    "pairs": pairs,
    "replaced": replaced,
    "after the result": after_the_result,
    "after the end": after_the_end,
    "revoked": revoked,
    "redelivered": redelivered,
    "newest": newest,
    "newest killed": newest_killed,
    "newest minority": newest_minority,
    "debounced": debounced,
}


def _bodies(scene: str) -> dict[str, list[tuple[str, int]]]:
    """Return the bodies of each key in the order in which they began: task id and number."""
    found: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for what, *entry in journal(stage["journal"], scene):
        if what == "begun":
            key, task_id, number = entry
            found[key].append((task_id, number))
    return found


def _only(scene: str, keys: dict[str, str], *, call: int, calls: int) -> Figures:
    """Return the figures of a scene of which only one call of each key may run."""
    bodies = _bodies(scene)
    broken = Counter(
        kind for key, kind in keys.items() if [number for _, number in bodies[key]] != [call]
    )
    return _figures(calls, bodies, broken)


def _figures(calls: int, bodies: dict[str, list[tuple[str, int]]], broken: Counter[str]) -> Figures:
    return Figures(calls=calls, bodies=sum(map(len, bodies.values())), broken=dict(+broken))
