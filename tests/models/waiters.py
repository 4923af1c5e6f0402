"""
Messages that wait for one key, from the refusal over the requeue to the wake-up and the next try.

The node runs the shipped scripts' meaning. The broker and the worker's main process
(`tasks/waiting_messages.py`) are modelled: a message is on its way, kept until its ETA, or started;
the main process looks in three steps, between which anything may happen: it collects messages, has
them put back into their wait queues, and inspects the key. ETAs and the looks at intervals are left
out: where nothing else is left to do, no message may wait for a key that is free.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from celery_redlock.protocol import Command, Granted, Waiter, acquire, release
from celery_redlock.protocol.commands import enqueue
from celery_redlock.protocol.node_model import (
    COMES_WITHIN_US,
    Identity,
    ModelNode,
    StoredKey,
    WaitQueue,
)
from tests.models.explorer import Label, State, ViolationError
from tests.models.state import NAMES, Table

KEY = "k"
LONG = 10**9

#: µs of the node's clock. Those that were woken lately have had their start of 10 ms.
_NOW = 10**12
_LATELY, _LONG_AGO = _NOW - COMES_WITHIN_US // 2, _NOW - 2 * COMES_WITHIN_US

#: In ms: between the two, so that only those that were woken lately go first.
_GRACE = COMES_WITHIN_US // 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class WaiterSetting:
    """
    What is explored.

    Attributes:
        messages: how many there are.
        fair: they go in order.
        losses: how many messages may be lost with their worker, or be revoked.
        checks: the main process looks a moment after each wake-up.
    """

    name: str
    messages: int
    fair: bool = False
    losses: int = 0
    checks: bool = False
    whole: bool = True
    expects: frozenset[str] = frozenset({"granted", "refused", "woken", "woken too early"})


@dataclass(frozen=True, slots=True)
class Scene:
    """
    Everything at one moment.

    Attributes:
        places: where each message is: in the `broker`, `kept` by the main process, it `starts`,
            `holds` the key, or is `over` or `lost`.
        queue: those that the node remembers, each asleep (0), woken lately (1) or long ago (2).
        published: whose wake-ups are on their way.
        doubted: messages that will be looked at.
        looking: those that are looked at now, and the step of that.
        is_rung: it will look because of a wake-up.
    """

    places: tuple[str, ...]
    queue: tuple[tuple[int, int], ...] = ()
    published: frozenset[int] = frozenset()
    doubted: frozenset[int] = frozenset()
    looking: tuple[str, frozenset[int]] = ("", frozenset())
    is_rung: bool = False

    def moved(self, message: int, place: str) -> Scene:
        """Return the scene with a message elsewhere."""
        places = (*self.places[:message], place, *self.places[message + 1 :])
        return replace(self, places=places)

    def at(self, place: str) -> list[int]:
        """Return the messages that are at a place, the oldest first."""
        return [message for message, where in enumerate(self.places) if where == place]


@dataclass(slots=True)
class Waiters:
    """The model."""

    setting: WaiterSetting
    reached: set[str] = field(default_factory=set)
    _scenes: Table = field(default_factory=Table)

    def initial(self) -> State:
        """All messages are about to try."""
        return (self._scenes.number(Scene(("starts",) * self.setting.messages)),)

    def moves(self, state: State) -> Iterator[tuple[State, Label, tuple[int, ...]]]:
        scene: Scene = self._scenes.things[state[0]]
        is_idle = True
        for text, then in self._moves(scene):
            is_idle = is_idle and text == "time passes"
            yield (self._scenes.number(then),), (text, ()), ()
        if is_idle and scene.at("kept"):
            raise ViolationError(("nothing is left to do", ()), "a message waits for a free key")

    def _moves(self, scene: Scene) -> Iterator[tuple[str, Scene]]:
        for message in scene.at("starts"):
            yield self._try(scene, message)
        for message in scene.at("holds"):
            released, _ = _run(scene, release((KEY,), NAMES[message], 7))
            yield f"{NAMES[message]} releases", released.moved(message, "over")
        for message in scene.at("broker"):
            then = replace(scene, doubted=scene.doubted | {message}).moved(message, "kept")
            yield f"{NAMES[message]} arrives", then
        for message in sorted(scene.published):
            yield self._woken(scene, message)
        yield from self._look(scene)
        if scene.is_rung:
            kept = frozenset(scene.at("kept"))
            yield "a moment has passed", replace(scene, is_rung=False, doubted=scene.doubted | kept)
        if any(woken == 1 for _, woken in scene.queue):
            late = tuple((message, 2 if woken else 0) for message, woken in scene.queue)
            yield "time passes", replace(scene, queue=late)
        if len(scene.at("lost")) < self.setting.losses:
            for message in (*scene.at("kept"), *scene.at("starts")):
                yield f"{NAMES[message]} is lost", scene.moved(message, "lost")

    def _try(self, scene: Scene, message: int) -> tuple[str, Scene]:
        name = NAMES[message]
        waiter = Waiter(name, message + 1, LONG, _GRACE if self.setting.fair else 0)
        then, granted = _run(scene, acquire((KEY,), name, LONG, 0, 0, "", waiter))
        self.reached.add("granted" if granted else "refused")
        return f"{name} tries", then.moved(message, "holds" if granted else "broker")

    def _woken(self, scene: Scene, message: int) -> tuple[str, Scene]:
        then = replace(scene, published=scene.published - {message})
        if self.setting.checks and scene.at("kept"):
            then = replace(then, is_rung=True)
        if scene.places[message] == "kept":
            self.reached.add("woken")
            then = then.moved(message, "starts")
        elif scene.places[message] == "broker":
            self.reached.add("woken too early")
        return f"{NAMES[message]} is woken", then

    def _look(self, scene: Scene) -> Iterator[tuple[str, Scene]]:
        step, names = scene.looking
        kept = frozenset(scene.at("kept"))
        if not step and scene.doubted:
            looking = ("collected", scene.doubted & kept)
            yield "a look begins", replace(scene, doubted=frozenset(), looking=looking)
        if step == "collected":
            then = scene
            for message in sorted(names):
                waiter = Waiter(NAMES[message], message + 1, LONG)
                then, _ = _run(then, enqueue([(KEY, waiter)]))
            # The oldest one that it keeps now is started if the key is free.
            oldest = kept if names else frozenset()
            yield "they are put back", replace(then, looking=("put back", oldest))
        if step == "put back":
            then = replace(scene, looking=("", frozenset()))
            first = min(names, default=None)
            if first is not None and first in kept and not scene.at("holds"):
                then = then.moved(first, "starts")
            yield "the key is inspected", then


def _run(scene: Scene, command: Command) -> tuple[Scene, bool]:
    """Let the node execute a command; return whether it granted the key."""
    queue = WaitQueue(
        {NAMES[message]: message + 1 for message, _ in scene.queue},
        {
            NAMES[message]: _LATELY if woken == 1 else _LONG_AGO
            for message, woken in scene.queue
            if woken
        },
        expires_at=math.inf,
    )
    holders = [StoredKey(NAMES[message], math.inf) for message in scene.at("holds")]
    node = ModelNode(
        Identity("one", "one"),
        dict.fromkeys([KEY], *holders) if holders else {},
        waiting={KEY: queue},
    )
    vote = node.run(command, _NOW)
    numbers = {name: number for number, name in enumerate(NAMES)}
    left = node.waiting[KEY]
    then = tuple(
        (numbers[name], (1 if left.woken[name] > _LONG_AGO else 2) if name in left.woken else 0)
        for name in left.first(len(left.scores))
    )
    published = scene.published | {numbers[name] for _, name in node.published}
    return replace(scene, queue=then, published=published), isinstance(vote, Granted)


WAITERS = (
    WaiterSetting(name="way-three", messages=3),
    WaiterSetting(name="way-in-order", messages=3, fair=True),
    WaiterSetting(name="way-lost", messages=3, losses=2, checks=True),
    WaiterSetting(name="way-in-order-lost", messages=3, fair=True, losses=2, checks=True),
)
