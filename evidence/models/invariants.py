"""
What must hold between contenders in every state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from celery_redlock.core.attempt import AcquireParams
from celery_redlock.protocol.timing import CANDIDATE_AHEAD_US
from evidence.models import stepper
from evidence.models.config import Setting
from evidence.models.explorer import Label, ViolationError
from evidence.models.handover import BROUGHT, barring
from evidence.models.state import NAMES, Node, Part, Tables
from evidence.models.stepper import GRACE, MOMENT, TICK

_ALL_DONE: Label = ("everything that was begun is done", ())


@dataclass(slots=True)
class Invariants:
    """Looks at states of one setting."""

    _setting: Setting
    _tables: Tables
    _params: list[AcquireParams]
    _trusted: Callable[[int, int, int], bool] = field(init=False)

    def __post_init__(self) -> None:
        self._trusted = cache(self._is_trusted)

    def check(self, globe: int, parts: tuple[int, ...], index: int, label: Label) -> None:
        """Raise `ViolationError` if what a contender has become breaks an invariant."""
        part: Part = self._tables.parts.things[parts[index]]
        if self._setting.split:
            ends = [self._tables.parts.things[number].scalars for number in parts]
            if all(end == "CONTENDED" for end in ends):
                raise ViolationError(label, "every contender gives way to another, nobody works")
        if part.held is None or part.stands != "holds":
            return
        contenders = self._setting.contenders
        token = part.held.token
        places = part.held.places(self._params[index])
        for place, before in part.floor if not part.extended else ():
            if place in places and token <= before:
                raise ViolationError(
                    label, f"token {token} is not larger than {before}, granted before it asked"
                )
        time = self._tables.globes.things[globe].time
        if token > (time + 9) * 1000 + CANDIDATE_AHEAD_US:
            raise ViolationError(label, f"token {token} is far ahead of every node's clock")
        for other, number in enumerate(parts):
            rival: Part = self._tables.parts.things[number]
            if other == index or rival.held is None:
                continue
            if not places & rival.held.places(self._params[other]):
                continue
            if rival.held.token == token:
                raise ViolationError(label, f"{NAMES[index]} and {NAMES[other]} share a token")
            marks = {key for key in contenders[index].keys if str(key).startswith("m")}
            nothing_ends = self._setting.brought and self._setting.expiries == 0
            if nothing_ends and marks & set(contenders[other].keys):
                raise ViolationError(label, "the body of one message runs twice")
            if self._setting.period and time - rival.held.since <= self._setting.period:
                raise ViolationError(
                    label, f"{NAMES[index]} and {NAMES[other]} have one slot within its period"
                )
            if (
                self._setting.timed
                and rival.stands in ("holds", "extends")
                and self._trusted(parts[index], index, time)
                and self._trusted(number, other, time)
            ):
                raise ViolationError(
                    label, f"{NAMES[index]} and {NAMES[other]} both trust their lease"
                )

    def check_barred(
        self, columns: tuple[int, ...], parts: tuple[int, ...], index: int, label: Label
    ) -> None:
        """Raise if something on a quorum that stood there all the time has kept nobody away."""
        part: Part = self._tables.parts.things[parts[index]]
        if part.stands not in ("holds", "reserved"):
            return
        still = part.barred & barring(self._setting, self._tables, columns, index)
        if still:
            raise ViolationError(
                label, f"{NAMES[index]} got the lock past what a quorum had: {', '.join(still)}"
            )

    def check_kept(self, columns: tuple[int, ...], parts: tuple[int, ...]) -> None:
        """Raise if failed takeovers left too little of a reservation, or one that succeeded any."""
        there = [self._tables.parts.things[number] for number in parts]
        if any(part.stands != "ended" for part in there) or not (
            nodes := self._nodes_at_rest(columns)
        ):
            return
        left = sum(any((key, owner) == ("k", BROUGHT) for key, owner, _ in it.keys) for it in nodes)
        if any(
            part.held is not None and params.previous is not None
            for part, params in zip(there, self._params, strict=True)
        ):
            if left:
                raise ViolationError(_ALL_DONE, f"a used reservation is left on {left} nodes")
            return
        unsure = sum(part.undone for part in there)
        if left < len(columns) - unsure:
            raise ViolationError(
                _ALL_DONE,
                f"the reservation is left on {left} nodes, and {unsure} were not sure to be asked",
            )

    def check_cleared(self, columns: tuple[int, ...], parts: tuple[int, ...]) -> None:
        """Raise if a node keeps a reservation for long that was taken over and given up."""
        used = {
            params.previous.owner
            for number, params in zip(parts, self._params, strict=True)
            if params.previous is not None
            and (part := self._tables.parts.things[number]).stands == "ended"
            and part.held is not None
        }
        left = sum(
            any(owner in used and until > GRACE for _, owner, until in node.keys)
            for node in self._nodes_at_rest(columns)
        )
        if left:
            raise ViolationError(_ALL_DONE, f"a used reservation is left for long on {left} nodes")

    def check_woken(self, columns: tuple[int, ...], parts: tuple[int, ...]) -> None:
        """Raise if nobody has woken a contender whose lock was released after it was refused."""
        there = [self._tables.parts.things[number] for number in parts]
        if any(part.stands != "ended" for part in there) or not (
            nodes := self._nodes_at_rest(columns)
        ):
            return
        woken = frozenset().union(*(node.woken for node in nodes))
        for index, part in enumerate(there):
            waits = self._setting.contenders[index].waits
            if waits and part.scalars == "CONTENDED" and NAMES[index] not in woken:
                raise ViolationError(_ALL_DONE, f"nobody has woken {NAMES[index]}")

    def _nodes_at_rest(self, columns: tuple[int, ...]) -> list[Node]:
        """Return the nodes if everything that was begun is done, and none otherwise."""
        things = [self._tables.columns.things[column] for column in columns]
        lanes = [self._tables.lanes.things[lane] for _, lanes in things for lane in lanes]
        return [] if any(lane.under_way for lane in lanes) else [node for node, _ in things]

    def _is_trusted(self, number: int, index: int, time: int) -> bool:
        held = self._tables.parts.things[number].held
        return stepper.is_trusted(held, self._params[index], time * TICK + MOMENT)
