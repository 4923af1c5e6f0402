"""
A key that is paused while messages try for it, others hold it, and nodes forget.

Nodes run the shipped scripts' meaning and attempts the shipped rounds, one node at a time. Modelled
are who pauses, who resumes, and the message: it tries, is kept by a worker once it was refused, and
starts when it is woken; by itself only when the pause has ended by time, which is its ETA.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import ClassVar

from celery_redlock.protocol import commands
from celery_redlock.protocol.commands import Command, Waiter
from celery_redlock.protocol.keys import Key, pause_of
from celery_redlock.protocol.node_model import Identity, ModelNode, StoredKey
from celery_redlock.protocol.rounds import AcquireRound, Phase, SlotRound
from celery_redlock.protocol.votes import Granted, Refused, Vote
from evidence.models.explorer import AnySetting, Found, ViolationError
from evidence.models.state import NAMES, Queues, frozen_queues, wait_queues

#: In ms; and µs of the nodes' clocks, which stand.
LONG, NOW = 10**9, 10**12

#: Who has the key from the beginning.
HOLDER = "H"

#: Larger than all counters, so that no attempt needs a second round.
_CANDIDATE = 1000

#: The key without a limit or rate.
_PLAIN = Key("k", "k")

_GRANTED_LATE = "a paused key was granted"
_KEYS_LOST = "a pause ended or changed a key of somebody else"
_ASLEEP = "a message waits for a free key"


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseSetting(AnySetting):
    """
    What is explored.

    Attributes:
        nodes: how many there are.
        messages: how many try for the key.
        key: the key that they try for.
        held: somebody has the key from the beginning.
        silent: how many nodes are down when the key is paused.
        forgets: how many others may lose their data.
        resumes: somebody ends the pause; otherwise it ends by time.
    """

    model: ClassVar = "evidence.models.pauses:Pauses"
    nodes: int = 3
    messages: int = 1
    key: Key = _PLAIN
    held: bool = False
    silent: int = 0
    forgets: int = 0
    resumes: bool = False
    expects: frozenset[str] = frozenset({"granted", "refused by the pause"})


@dataclass(frozen=True, slots=True)
class _Node:
    """What a node has: its keys with their owners, and its wait queues, with who was woken."""

    keys: tuple[tuple[str, str], ...] = ()
    queues: Queues = ()


@dataclass(frozen=True, slots=True)
class _Message:
    """
    A message, and the attempt that it makes.

    Attributes:
        place: it `starts`, `asks` the nodes, is `kept`, `holds` the key, or is `over`.
        began_in_pause: the attempt began when the key was paused.
        votes: the replies so far, in their order.
    """

    place: str = "starts"
    began_in_pause: bool = False
    votes: tuple[tuple[int, Vote], ...] = ()


@dataclass(frozen=True, slots=True)
class _Scene:
    """
    Everything at one moment.

    Attributes:
        pause: it is `to come`, being `set`, `set on all` that answer, being `ended`, or `over`.
        under_way: the nodes that have not executed the command of the pause yet.
        published: whose wake-ups are on their way.
    """

    nodes: tuple[_Node, ...]
    messages: tuple[_Message, ...]
    pause: str = "to come"
    under_way: frozenset[int] = frozenset()
    is_held: bool = False
    published: frozenset[int] = frozenset()
    forgets: int = 0

    def node(self, index: int, node: _Node) -> _Scene:
        """Return the scene with a node changed."""
        return replace(self, nodes=(*self.nodes[:index], node, *self.nodes[index + 1 :]))

    def message(self, index: int, message: _Message) -> _Scene:
        """Return the scene with a message changed."""
        others = self.messages
        return replace(self, messages=(*others[:index], message, *others[index + 1 :]))


@dataclass(slots=True)
class Pauses:
    """The model."""

    setting: PauseSetting
    reached: set[str] = field(default_factory=set)

    def initial(self) -> _Scene:
        """All messages are about to try, and the key is not paused."""
        setting = self.setting
        scene = _Scene((_Node(),) * setting.nodes, (_Message(),) * setting.messages)
        if setting.held:
            scene = replace(scene, is_held=True)
            for node in range(setting.nodes):
                scene, _ = _run(scene, node, self._acquire(HOLDER, None))
        return scene

    def moves(self, scene: _Scene) -> Iterator[Found]:
        is_idle = True
        for text, then in self._moves(scene):
            is_idle = False
            yield then, (text, ()), ()
        if is_idle and any(message.place == "kept" for message in scene.messages):
            raise ViolationError(("nothing is left to do", ()), _ASLEEP)

    def _moves(self, scene: _Scene) -> Iterator[tuple[str, _Scene]]:
        for index, message in enumerate(scene.messages):
            yield from self._of_message(scene, index, message)
        if scene.is_held:
            then = self._everywhere(scene, commands.release((self._slot,), HOLDER, 7))
            yield f"{HOLDER} releases", replace(then, is_held=False)
        for index in sorted(scene.published):
            then = replace(scene, published=scene.published - {index})
            if scene.messages[index].place == "kept":
                self.reached.add("woken")
                then = then.message(index, _Message())
            yield f"{NAMES[index]} is woken", then
        yield from self._of_pause(scene)
        if scene.forgets < self.setting.forgets:
            for node in range(self.setting.nodes - self.setting.silent):
                then = replace(scene.node(node, _Node()), forgets=scene.forgets + 1)
                yield f"node {node + 1} loses its data", then

    def _of_message(
        self, scene: _Scene, index: int, message: _Message
    ) -> Iterator[tuple[str, _Scene]]:
        name = NAMES[index]
        if message.place == "starts":
            begun = _Message("asks", scene.pause == "set on all")
            yield f"{name} starts", scene.message(index, begun)
        elif message.place == "asks":
            asked = {node for node, _ in message.votes}
            for node in set(range(self.setting.nodes)) - asked:
                yield self._asked(scene, index, node)
        elif message.place == "kept":
            # Its ETA is the end of the pause, or comes soon where another has had the key.
            if scene.pause == "over" and not self.setting.resumes and not scene.is_held:
                yield f"the ETA of {name} comes", scene.message(index, _Message())
        elif message.place == "holds":
            then = self._everywhere(scene, commands.release((self._slot,), name, 7))
            yield f"{name} releases", then.message(index, _Message("over"))

    def _asked(self, scene: _Scene, index: int, node: int) -> tuple[str, _Scene]:
        name, before = NAMES[index], scene.messages[index]
        waiter = Waiter(name, index + 1, LONG)
        then, vote = _run(scene, node, self._acquire(name, waiter))
        if isinstance(vote, Refused) and vote.holders[0].owner == "paused":
            self.reached.add("refused by the pause")
        message = replace(before, votes=(*before.votes, (node, vote)))
        phase = self._phase(message)
        text = f"{name} asks node {node + 1}: {type(vote).__name__.lower()}"
        if phase is Phase.VOTING:
            return text, then.message(index, message)
        if phase is Phase.GRANTED:
            self.reached.add("granted")
            if message.began_in_pause and scene.pause == "set on all":
                raise ViolationError((text, ()), _GRANTED_LATE)
            return f"{text}: granted", then.message(index, _Message("holds"))
        for other, theirs in message.votes:
            if isinstance(theirs, Granted):
                undo = commands.release((self.setting.key,), name, 0)
                then, _ = _run(then, other, undo)
                if not self.setting.key.slots:
                    put_back = commands.enqueue([(self.setting.key.stored, waiter)])
                    then, _ = _run(then, other, put_back)
        # A message tries again soon after a vote that proves no holder.
        place = "kept" if phase is Phase.CONTENDED else "starts"
        return f"{text}: {phase.name.lower()}", then.message(index, _Message(place))

    def _of_pause(self, scene: _Scene) -> Iterator[tuple[str, _Scene]]:
        answering = frozenset(range(self.setting.nodes - self.setting.silent))
        if scene.pause == "to come":
            yield "a pause is sent", replace(scene, pause="set", under_way=answering)
        elif scene.pause == "set on all" and self.setting.resumes:
            yield "a resume is sent", replace(scene, pause="ended", under_way=answering)
        elif scene.pause == "set on all":
            yield "the pause is over", replace(scene, pause="ended", under_way=answering)
        for node in scene.under_way:
            done = replace(scene, under_way=scene.under_way - {node})
            text, then = self._at(done, node)
            if not then.under_way:
                then = replace(then, pause="set on all" if scene.pause == "set" else "over")
            yield text, then

    def _at(self, scene: _Scene, node: int) -> tuple[str, _Scene]:
        """Let the command of the pause be executed on a node, or the pause end there."""
        before = scene.nodes[node]
        if scene.pause == "set":
            then, _ = _run(scene, node, commands.pause(self.setting.key, "somebody", LONG))
            if not set(before.keys) <= set(then.nodes[node].keys):
                raise ViolationError((f"node {node + 1} is paused", ()), _KEYS_LOST)
            return f"node {node + 1} is paused", then
        if self.setting.resumes:
            then, _ = _run(scene, node, commands.resume(self.setting.key))
            return f"node {node + 1} is resumed", then
        pause = pause_of(self.setting.key.stored)
        left = replace(before, keys=tuple(pair for pair in before.keys if pair[0] != pause))
        return f"the pause ends on node {node + 1}", scene.node(node, left)

    def _everywhere(self, scene: _Scene, command: Command) -> _Scene:
        for node in range(self.setting.nodes):
            scene, _ = _run(scene, node, command)
        return scene

    def _acquire(self, owner: str, waiter: Waiter | None) -> Command:
        return commands.acquire((self.setting.key,), owner, LONG, _CANDIDATE, 0, "", waiter)

    @property
    def _slot(self) -> Key:
        return self.setting.key.at(0) if self.setting.key.slots else self.setting.key

    def _phase(self, message: _Message) -> Phase:
        nodes = self.setting.nodes
        terms = {"sent_at": 0.0, "ttl": 1000.0, "drift_factor": 0.0}
        round_ = AcquireRound(nodes, **terms)
        if self.setting.key.slots:
            round_ = SlotRound(nodes, **terms, places=[1], rates=[0])
        for node, vote in message.votes:
            round_.vote(node, vote, 0.0)
        return round_.phase


def _run(scene: _Scene, index: int, command: Command) -> tuple[_Scene, Vote]:
    then, vote, woken = _executed(scene.nodes[index], command)
    return replace(scene.node(index, then), published=scene.published | woken), vote


@cache
def _executed(before: _Node, command: Command) -> tuple[_Node, Vote, frozenset[int]]:
    """
    Let a node execute a command, and return those whom it has woken as well.

    Its counters are new, so that no token needs a second round.
    """
    node = ModelNode(
        Identity("one", "one"),
        {key: StoredKey(owner, NOW) for key, owner in before.keys},
        waiting=wait_queues(before.queues, NOW - 1),
    )
    vote = node.run(command, NOW)
    then = _Node(
        tuple(sorted((key, stored.owner) for key, stored in node.keys.items())),
        frozen_queues(node.waiting),
    )
    return then, vote, frozenset(NAMES.index(name) for _, name in node.published)


#: One grant in a time that does not end here.
_RATE = Key.of("", "k", 1, LONG)

_WOKEN = PauseSetting(name="").expects | {"woken"}

PAUSES = (
    PauseSetting(name="pause-ends"),
    PauseSetting(name="pause-resumed", resumes=True, expects=_WOKEN),
    PauseSetting(name="pause-two", nodes=1, messages=2, held=True, resumes=True, expects=_WOKEN),
    PauseSetting(name="pause-held", held=True, resumes=True, expects=_WOKEN),
    PauseSetting(name="pause-held-ends", held=True),
    PauseSetting(name="pause-forgotten", forgets=1),
    PauseSetting(name="pause-down", silent=1),
    PauseSetting(name="pause-five", nodes=5, silent=1, forgets=1, whole=False),
    PauseSetting(name="pause-rate", key=_RATE, resumes=True, expects=_WOKEN),
)
