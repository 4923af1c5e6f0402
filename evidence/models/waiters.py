"""
Messages that wait for one key, from the refusal over the requeue to the wake-up and the next try.

The node runs the shipped scripts' meaning. The broker and the worker's main process
(`tasks/waiting_messages.py`) are modelled: a message is on its way, kept until its ETA, or started.
It may then wait for a process for any time, in its worker or in its queue. The main process looks
in three steps, between which anything may happen: it collects messages, enters them in their wait
queues again, and inspects the key. ETAs and the looks at intervals are not modelled: where nothing
else is left to do, no message may wait for a key that is free.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

from celery_redlock.protocol.commands import Command, Waiter, acquire, enqueue, release
from celery_redlock.protocol.keys import Key
from celery_redlock.protocol.node_model import Identity, ModelNode, StoredKey
from celery_redlock.protocol.votes import Granted
from celery_redlock.protocol.wait_queue import COMES_WITHIN_US, WaitQueue
from evidence.models.explorer import AnySetting, Found, ViolationError
from evidence.models.state import NAMES

KEY = "k"
LONG = 10**9

#: µs of the node's clock. Those that were woken lately have had their start of 10 ms.
_NOW = 10**12
_LATELY, _LONG_AGO = _NOW - COMES_WITHIN_US // 2, _NOW - 2 * COMES_WITHIN_US

#: In ms: between the two, so that only those that were woken lately go first.
_GRACE = COMES_WITHIN_US // 1000

_ALWAYS = frozenset({"granted", "refused", "woken", "woken too early"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WaiterSetting(AnySetting):
    """
    What is explored.

    Attributes:
        messages: how many there are.
        fair: they go in order.
        losses: how many messages may be lost with their worker, or be revoked.
        checks: the main process looks a moment after each wake-up.
        ranks: the rank of each message, by its priority; empty if all have the same.
        is_held: the first message has the key from the beginning.
    """

    model: ClassVar = "evidence.models.waiters:Waiters"
    messages: int
    ranks: tuple[int, ...] = ()
    is_held: bool = False
    fair: bool = False
    losses: int = 0
    checks: bool = False
    expects: frozenset[str] = _ALWAYS

    def waiter(self, message: int) -> Waiter:
        """Return the waiter of a message; a later one has begun to wait later."""
        rank = self.ranks[message] if self.ranks else 0
        grace = _GRACE if self.fair else 0
        return Waiter(NAMES[message], message + 1, LONG, grace, rank=rank)

    def place(self, message: int) -> tuple[int, int]:
        """Return the place of a message: by its rank, and then by how long it waits."""
        waiter = self.waiter(message)
        return waiter.rank, waiter.since_ms


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

    def initial(self) -> Scene:
        """All messages are about to try; or the first one has the key already."""
        first = "holds" if self.setting.is_held else "starts"
        others = ("starts",) * (self.setting.messages - 1)
        return Scene((first, *others))

    def moves(self, scene: Scene) -> Iterator[Found]:
        is_idle = True
        for text, then in self._moves(scene):
            is_idle = is_idle and text == "time passes"
            yield then, (text, ()), ()
        if is_idle and scene.at("kept"):
            raise ViolationError(("nothing is left to do", ()), "a message waits for a free key")

    def _moves(self, scene: Scene) -> Iterator[tuple[str, Scene]]:
        for message in scene.at("starts"):
            yield self._try(scene, message)
        for message in scene.at("holds"):
            released, _ = self._run(scene, release((Key(KEY, KEY),), NAMES[message], 7))
            self._check_woken(scene, released)
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
        waiter = self.setting.waiter(message)
        then, granted = self._run(scene, acquire((Key(KEY, KEY),), name, LONG, 0, 0, "", waiter))
        self.reached.add("granted" if granted else "refused")
        if granted and self.setting.fair:
            self._check_granted(scene, message)
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
                then, _ = self._run(then, enqueue([(KEY, self.setting.waiter(message))]))
            # The first one that it keeps now is started if the key is free.
            asleep = kept if names else frozenset()
            yield "they are put back", replace(then, looking=("put back", asleep))
        if step == "put back":
            then = replace(scene, looking=("", frozenset()))
            first = min(names, default=None, key=self.setting.place)
            if first is not None and first in kept and not scene.at("holds"):
                then = then.moved(first, "starts")
            yield "the key is inspected", then

    def _check_woken(self, scene: Scene, released: Scene) -> None:
        """Check that none sleeps on that comes before one which a release has woken."""
        asleep = {message for message, woken in scene.queue if not woken}
        woken = asleep & {message for message, woken in released.queue if woken}
        last = max(map(self.setting.place, woken), default=(-1, 0))
        if any(self.setting.place(message) < last for message in asleep - woken):
            raise ViolationError(("a release", ()), "a message is woken before a more urgent one")
        if asleep - woken:
            self.reached.add("left asleep")

    def _check_granted(self, scene: Scene, granted: int) -> None:
        """Check that none which may still come in time was before the one that has the key."""
        own = self.setting.place(granted)
        if any(self.setting.place(message) < own for message, woken in scene.queue if woken < 2):
            label = (f"{NAMES[granted]} tries", ())
            raise ViolationError(label, "a message overtakes a more urgent one")

    def _run(self, scene: Scene, command: Command) -> tuple[Scene, bool]:
        """Let the node execute a command; return whether it granted the key."""
        places = {NAMES[at]: self.setting.waiter(at).score for at in range(self.setting.messages)}
        queue = WaitQueue(
            {NAMES[message]: places[NAMES[message]] for message, _ in scene.queue},
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
        if not left.scores.items() <= places.items():
            raise ViolationError((command.script, ()), "a node has a message at another place")
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
    WaiterSetting(
        name="way-ranks",
        messages=4,
        ranks=(0, 1, 0, 0),
        is_held=True,
        checks=True,
        whole=False,
        expects=_ALWAYS | {"left asleep"},
    ),
    WaiterSetting(name="way-ranks-in-order", messages=3, ranks=(1, 1, 0), fair=True),
    WaiterSetting(name="way-ranks-lost", messages=3, ranks=(1, 0, 1), losses=2, checks=True),
)
