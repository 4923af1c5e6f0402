"""
What may happen to a node: it runs a command, loses one, forgets, crashes, or its clock leaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache

from celery_redlock.protocol.commands import Command, Script, acquire
from celery_redlock.protocol.keys import GOES_FIRST, RATE_PREFIX, Key
from celery_redlock.protocol.node_model import (
    GuardRecord,
    Identity,
    ModelNode,
    StoredKey,
)
from celery_redlock.protocol.votes import Granted, Refused, Vote
from celery_redlock.protocol.wait_queue import START_US
from evidence.models.config import Setting
from evidence.models.handover import is_reservation
from evidence.models.state import (
    NAMES,
    Globe,
    Lane,
    Node,
    Tables,
    frozen_queues,
    owner_name,
    wait_queues,
)
from evidence.models.stepper import GRACE

#: What may set a reservation.
_SETTING = (Script.ACQUIRE, Script.RELEASE)

#: How it reads, the column then, the world then, and which invariant it breaks.
NodeMove = tuple[str, int, int, str]


@dataclass(slots=True)
class NodeMoves:
    """The moves of nodes, each kind of step run once."""

    _setting: Setting
    _tables: Tables
    _reached: set[str]
    _first: Node
    _hands_over: bool = field(init=False)
    moves_of: Callable[[int, int], list[NodeMove]] = field(init=False)
    swept: Callable[[int, int], int] = field(init=False)

    def __post_init__(self) -> None:
        contenders = self._setting.contenders
        self._hands_over = any(one.takes_over or one.reserves for one in contenders)
        self.moves_of = cache(lambda globe, column: list(self._find(globe, column)))
        self.swept = cache(self._swept)

    def _find(self, globe: int, number: int) -> Iterator[NodeMove]:
        """Yield what may happen to the node of a column now."""
        world: Globe = self._tables.globes.things[globe]
        node, lanes = self._tables.columns.things[number]
        for index, lane_number in enumerate(lanes):
            lane: Lane = self._tables.lanes.things[lane_number]
            if lane.under_way:
                (command, awaited), *rest = lane.under_way
                changed, vote = self._run(node, command, world.time)
                answer = lane.answer
                if awaited:
                    arrived = world.time if command.script is Script.EXTEND else 0
                    answer = (vote, arrived)
                late = lane.late
                if awaited:
                    late = False
                elif self._hands_over and awaited is None and command.script in _SETTING:
                    late = True
                then = Lane(tuple(rest), answer, lane.counted, lane.acked, late)
                text = f"{{0}} runs {NAMES[index]}'s {command.script}: {_told(vote)}"
                self._reached.add(f"{command.script}: {type(vote).__name__}")
                if isinstance(vote, Refused) and vote.holders[0].owner.startswith(GOES_FIRST):
                    self._reached.add("refused to go first")
                danger = _robbed(index, command, node, changed)
                # A refused one may find its value there, given back by whoever had replaced it.
                if (
                    self._hands_over
                    and command.script is Script.ACQUIRE
                    and isinstance(vote, Granted)
                ):
                    danger = danger or _lasts(command, changed, world.time)
                if late:
                    danger = danger or self._outlived(node, changed, world.time)
                yield text, self._tables.column(changed, lanes, index, then), globe, danger
                if awaited and world.losses:
                    then_globe = self._tables.globes.number(replace(world, losses=world.losses - 1))
                    text = f"{NAMES[index]}'s {command.script} to {{0}} is lost"
                    then = replace(lane, under_way=tuple(rest))
                    yield text, self._tables.column(node, lanes, index, then), then_globe, ""
        setting = self._setting
        if not setting.timed and (setting.expiries is None or world.expiries):
            then_globe = globe
            if setting.expiries is not None:
                then_globe = self._tables.globes.number(replace(world, expiries=world.expiries - 1))
            for key in node.keys:
                left = replace(node, keys=tuple(other for other in node.keys if other != key))
                text = f"{key[0]!r} of {owner_name(key[1])} expires on {{0}}"
                yield text, self._tables.columns.number((left, lanes)), then_globe, ""
        if world.crashes:
            then_globe = self._tables.globes.number(replace(world, crashes=world.crashes - 1))
            for kind in setting.crash_kinds:
                left = self._crashed(node, kind, world.time)
                if left != node:
                    self._reached.add(f"crash: {kind}")
                    text = f"{{0}} crashes ({kind})"
                    yield text, self._tables.columns.number((left, lanes)), then_globe, ""
        if world.leaps and not node.gained and (node.keys or node.guard != (node.identity, 0)):
            then_globe = self._tables.globes.number(replace(world, leaps=world.leaps - 1))
            left = self._sweep(replace(node, gained=setting.leap), world.time)
            text = f"the clock of {{0}} gains {setting.leap} ms"
            yield text, self._tables.columns.number((left, lanes)), then_globe, ""

    def _outlived(self, before: Node, after: Node, time: int) -> str:
        """Tell whether a node that was stopped has set a reservation for long."""
        for key in set(after.keys) - set(before.keys):
            lasts = key[2] - (time + after.gained)
            if lasts > GRACE and is_reservation(self._setting, key[1]):
                return "a node that was stopped has set a reservation for long"
        return ""

    def _crashed(self, node: Node, kind: str, time: int) -> Node:
        if kind == "counters":
            return replace(node, fences=())
        if kind == "queues":
            return replace(node, waiting=())
        if kind == "flush":
            return Node(identity=node.identity, gained=node.gained)
        if kind == "snapshot":
            keys = tuple(key for key in self._first.keys if key[2] >= time)
            return replace(self._first, identity=node.identity + 1, keys=keys, gained=node.gained)
        if kind == "stale":
            return replace(node, identity=node.identity + 1, keys=())
        then = Node(identity=node.identity + 1, gained=node.gained)
        if kind == "noticed":
            bystander = acquire(
                (Key("z", "z"),), "bystander Z", self._setting.ttl, 0, self._setting.max_ttl
            )
            then, _ = self._run(then, bystander, time)
        return then

    def _run(self, node: Node, command: Command, time: int) -> tuple[Node, Vote]:
        state = ModelNode(
            Identity(str(node.identity), str(node.identity)),
            {key: StoredKey(owner, until) for key, owner, until in node.keys},
            dict(node.fences),
            None if node.guard is None else _record(*node.guard),
            # Those that were woken have had their start, and are on their way.
            waiting=wait_queues(node.waiting, (time + node.gained) * 1000 - START_US - 1),
        )
        vote = state.run(command, (time + node.gained) * 1000)
        guard = None
        if state.guard is not None:
            guard = (int(state.guard.run), state.guard.not_before)
        then = Node(
            node.identity,
            tuple(sorted((key, it.owner, it.expires_at) for key, it in state.keys.items())),
            tuple(sorted(state.fences.items())),
            guard,
            node.gained,
            frozen_queues(state.waiting),
            (node.woken - _refused_waiter(command, vote)) | {name for _, name in state.published},
        )
        return self._sweep(then, time), vote

    def _sweep(self, node: Node, time: int) -> Node:
        """Forget what no longer matters, so that equal futures are equal states."""
        if not self._setting.timed:
            return node
        here = time + node.gained
        keys = tuple(key for key in node.keys if here <= key[2])
        guard = node.guard
        if guard is not None and guard[1] <= here * 1000:
            guard = (guard[0], 0)
        if keys == node.keys and guard == node.guard:
            return node
        return replace(node, keys=keys, guard=guard)

    def _swept(self, column: int, time: int) -> int:
        """Return the number of a column when the clocks say `time`."""
        node, lanes = self._tables.columns.things[column]
        return self._tables.columns.number((self._sweep(node, time), lanes))


def _robbed(index: int, command: Command, before: Node, after: Node) -> str:
    """Tell whether a contender's command has ended or changed a key of somebody else."""
    # An acquire names whom it takes over, after owner, length, candidate and quarantine.
    spoken_for = (
        (command.args[0], *command.args[4:])
        if command.script is Script.ACQUIRE
        else command.args[:1]
    )
    for key in before.keys:
        if key[1] not in spoken_for and key not in after.keys and not _keeps(command, key, after):
            return f"{NAMES[index]} ended or changed a key of {owner_name(key[1])}"
    return ""


def _keeps(command: Command, key: tuple[str, str, float], after: Node) -> bool:
    """Whether a holder's release has taken a slot of a rate over, for at least as long."""
    return (
        command.script is Script.RELEASE
        and key[0].startswith(RATE_PREFIX)
        and any(
            other[:2] == (key[0], command.args[0]) and other[2] >= key[2] for other in after.keys
        )
    )


def _record(identity: int, not_before: int) -> GuardRecord:
    return GuardRecord(str(identity), str(identity), not_before)


def _refused_waiter(command: Command, vote: Vote) -> set[str]:
    return {str(command.args[5])} if isinstance(vote, Refused) and len(command.args) > 5 else set()


def _lasts(command: Command, after: Node, time: int) -> str:
    """Tell whether somebody who runs has keys for longer than its lease."""
    owner, ttl = command.args[:2]
    if any(key[1] == owner and key[2] > time + after.gained + int(ttl) for key in after.keys):
        return "a key that was taken over outlives the lease"
    return ""


def _told(vote: Vote) -> str:
    name = type(vote).__name__.lower()
    high = getattr(vote, "high", None)
    if high is not None:
        return f"{name} {high}"
    holders = getattr(vote, "holders", None)
    return f"{name} by {owner_name(holders[0].owner)}" if holders else name
