"""
What a contender may do with the lock of a message: reserve it, give it up for good, hand it back.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from celery_redlock.core.attempt import AcquireParams
from celery_redlock.core.reservation import Reservation
from celery_redlock.protocol.commands import ReleaseAction, Script
from celery_redlock.protocol.keys import GOES_FIRST, Key, owner_value
from celery_redlock.protocol.votes import Granted
from celery_redlock.transport import AckedNodes
from evidence.models import stepper
from evidence.models.config import Contender, Setting
from evidence.models.exchange import Move, Talk
from evidence.models.state import NAMES, Part, Tables, owner_name
from evidence.models.stepper import GRACE, LONG, MOMENT, TICK, Stage

#: What the message of `Q` has brought along, and the mark of work that is done.
BROUGHT = "reserved for Q"
FINISHED = "finished *"


def previous_of(setting: Setting, contender: Contender) -> Reservation | None:
    """Return whose keys count as free for a contender."""
    name = contender.takes_over
    if not name:
        return None
    if name == "Q":
        return Reservation(node_keys=("k",), owner=BROUGHT, expires_at=LONG * TICK)
    giver = setting.contenders[NAMES.index(name)]
    if not giver.reserves:
        return _handed_back(name)
    # Whoever reserves does so when the clocks say 0, so that its owner value is known.
    owner = owner_value(bytes([NAMES.index(name) + 1]) * 16, giver.candidate, name)
    return Reservation(node_keys=("k",), owner=owner, expires_at=LONG * TICK)


def _handed_back(name: str) -> Reservation:
    return Reservation(
        node_keys=("k",), owner=f"handed back by {name.lower()}", expires_at=LONG * TICK
    )


def is_reservation(setting: Setting, owner: str) -> bool:
    """Tell whether an owner value stands for a message, and not for somebody who runs."""
    name = owner_name(owner)
    if name == "Q" or name.islower():
        return True
    return name in NAMES and setting.contenders[NAMES.index(name)].reserves


def barring(
    setting: Setting, tables: Tables, columns: tuple[int, ...], index: int
) -> frozenset[str]:
    """
    Return what a quorum of nodes has that is in a contender's way.

    That is reservations, marks, and for a fair contender those that have waited longer.
    """
    contender = setting.contenders[index]
    previous = previous_of(setting, contender)
    seen = Counter(
        owner
        for column in columns
        for key, owner, _ in tables.columns.things[column][0].keys
        if key in contender.keys and (owner == FINISHED or is_reservation(setting, owner))
    )
    if contender.fair:
        seen.update(
            GOES_FIRST + name
            for column in columns
            for key, waiting in tables.columns.things[column][0].waiting
            for name, _ in waiting
            if key in contender.keys and NAMES.index(name) < index
        )
    needed = setting.nodes // 2 + 1
    return frozenset(
        owner
        for owner, count in seen.items()
        if count >= needed and (previous is None or owner != previous.owner)
    )


def granted_by(tables: Tables, lanes: tuple[int, ...]) -> stepper.Feed:
    """Return the answers that are there and say that the acquire is done, not noted before."""
    there = [(node, tables.lanes.things[lane]) for node, lane in enumerate(lanes)]
    return tuple(
        (node, lane.answer[0])
        for node, lane in there
        if lane.answer is not None and isinstance(lane.answer[0], Granted) and not lane.acked
    )


@dataclass(slots=True)
class HandOver:
    """The moves of contenders that hold or have reserved."""

    _setting: Setting
    _tables: Tables
    _params: list[AcquireParams]
    _reached: set[str]
    _talk: Talk

    def moves(self, index: int, part: Part, stage: Stage, lanes: tuple[int, ...]) -> Iterator[Move]:
        """Return what it may do with what it has."""
        stage.time += MOMENT
        stage.answered_at = stage.resumed_at = stage.time
        stage.gives_up = True
        stage.known = self._talk.known_done(lanes)
        ends = self._setting.contenders[index].ends
        if part.stands == "holds":
            if "finish" in ends:
                yield self._finish(index, part, stage, lanes)
            if "hand back" in ends:
                yield self._hand_back(index, part, self._like(stage), lanes)
        elif part.stands in ("hands", "proves"):
            yield from self._lengthen_where_handed(index, part, stage, lanes)
        elif part.stands == "reserved":
            if "lengthen" in ends:
                yield from self._lengthen(index, part, stage, lanes)
            if "cancel" in ends:
                yield self._cancel(index, part, self._like(stage), lanes)
        elif part.stands == "sent":
            yield from self._take_late(index, part, stage, lanes)
        elif part.stands in ("cancels", "proves it back"):
            yield from self._lengthen_where_cancelled(index, part, stage, lanes)

    def _finish(self, index: int, part: Part, stage: Stage, lanes: tuple[int, ...]) -> Move:
        assert part.held is not None
        stage.hasty = True
        stepper.run_finish(part.held, self._params[index], stage, self._fates(index), None)
        self._reached.add("finished")
        ended = Part("ended", held=replace(part.held, valid_until=0.0))
        return self._move(index, "finishes", ended, self._talk.said(stage, lanes))

    def _fates(self, index: int) -> dict[str, ReleaseAction]:
        keys = self._setting.contenders[index].keys
        return {Key(key, key): ReleaseAction(LONG, FINISHED) for key in keys if key.startswith("m")}

    def _hand_back(self, index: int, part: Part, stage: Stage, lanes: tuple[int, ...]) -> Move:
        assert part.held is not None
        back = _handed_back(NAMES[index])
        stepper.run_finish(part.held, self._params[index], stage, self._fates(index), back)
        held = replace(part.held, valid_until=0.0)
        then = replace(part, stands="hands", held=held, barred=frozenset())
        lanes_then = self._talk.said(stage, lanes, acked=stage.known)
        return self._move(index, "hands back", then, lanes_then)

    def _lengthen_where_handed(
        self, index: int, part: Part, stage: Stage, lanes: tuple[int, ...]
    ) -> Iterator[Move]:
        assert part.held is not None
        back = _handed_back(NAMES[index])
        for feed in self._answers(lanes):
            now = self._resumed(part, stage, lanes, feed)
            stepper.run_finish(part.held, self._params[index], now, self._fates(index), back)
            if now.stopped:
                yield self._proving(index, replace(part, stands="proves"), now, lanes, feed)
                continue
            self._note_lengthening(now)
            ended = Part("ended", held=part.held)
            yield self._move(index, "hands", ended, self._talk.said(now, lanes))

    def _resumed(
        self, part: Part, stage: Stage, lanes: tuple[int, ...], feed: stepper.Feed
    ) -> Stage:
        """Return a stage for the code that goes on with these answers to its latest question."""
        now = self._like(stage)
        now.feed = feed
        if part.scalars is not None:
            things = [self._tables.lanes.things[lane] for lane in lanes]
            now.restored = [(part.scalars, tuple(lane.counted for lane in things))]
            now.remembered = frozenset(node for node, lane in enumerate(things) if lane.counted)
        return now

    def _proving(
        self, index: int, part: Part, stage: Stage, lanes: tuple[int, ...], feed: stepper.Feed
    ) -> Move:
        """It asks whether what it has given stands, and remembers which nodes have it."""
        scalars, _ = stepper.snapshot(stage.rounds[0])
        answers = dict(feed)
        votes = tuple(answers.get(node) for node in range(len(lanes)))
        self._reached.add("asks whether it stands")
        lanes_then = self._talk.said(stage, lanes, votes, acked=stage.known)
        then = replace(part, scalars=scalars)
        return self._move(index, "asks whether it stands", then, lanes_then)

    def _lengthen(
        self, index: int, part: Part, stage: Stage, lanes: tuple[int, ...]
    ) -> Iterator[Move]:
        for caught in ((), granted_by(self._tables, lanes)):
            now = self._like(stage)
            now.caught = caught
            stepper.run_lengthen(self._reserved(index), now)
            self._note_lengthening(now)
            yield self._followed(index, now, lanes, "lengthens")

    def _take_late(
        self, index: int, part: Part, stage: Stage, lanes: tuple[int, ...]
    ) -> Iterator[Move]:
        for answer in granted_by(self._tables, lanes):
            now = self._like(stage)
            now.caught = (answer,)
            stepper.run_late(self._reserved(index), now)
            for command, _, _ in now.said:
                self._reached.add(f"late: {command.script}")
            yield self._followed(index, now, lanes, "takes a late answer")

    def _followed(self, index: int, stage: Stage, lanes: tuple[int, ...], text: str) -> Move:
        taken = {node for node, _ in stage.caught} | stage.known
        lanes_then = self._talk.said(stage, lanes, acked=stage.acked | stage.known, taken=taken)
        return self._move(index, text, Part("sent"), lanes_then)

    def _cancel(self, index: int, part: Part, stage: Stage, lanes: tuple[int, ...]) -> Move:
        previous = self._params[index].previous
        stepper.run_cancel(self._reserved(index), previous, stage)
        self._reached.add("cancelled")
        then = Part("ended" if previous is None else "cancels")
        return self._move(index, "cancels", then, self._talk.said(stage, lanes))

    def _lengthen_where_cancelled(
        self, index: int, part: Part, stage: Stage, lanes: tuple[int, ...]
    ) -> Iterator[Move]:
        for feed in self._answers(lanes):
            now = self._resumed(part, stage, lanes, feed)
            now.known = frozenset()
            stepper.run_cancel(self._reserved(index), self._params[index].previous, now)
            if now.stopped:
                then = replace(part, stands="proves it back")
                yield self._proving(index, then, now, lanes, feed)
                continue
            self._note_lengthening(now)
            text = "lengthens what it has given back"
            yield self._move(index, text, Part("ended"), self._talk.said(now, lanes))

    def _reserved(self, index: int) -> Reservation:
        reserved = previous_of(self._setting, Contender(takes_over=NAMES[index]))
        assert reserved is not None
        return reserved

    def _note_lengthening(self, stage: Stage) -> None:
        for command, nodes, _ in stage.said:
            if command.script is Script.EXTEND and nodes and int(command.args[1]) > GRACE:
                self._reached.add("lengthened")

    def _move(self, index: int, text: str, then: Part, lanes: tuple[int, ...]) -> Move:
        return (f"{NAMES[index]} {text}", ()), self._tables.parts.number(then), lanes, ""

    def _answers(self, lanes: tuple[int, ...]) -> Iterator[stepper.Feed]:
        """Yield which of the answers that are there have been taken; their order is all one."""
        there = [
            (node, answer[0])
            for node, lane in enumerate(lanes)
            if (answer := self._tables.lanes.things[lane].answer) is not None
        ]
        for count in range(len(there) + 1):
            yield from itertools.combinations(there, count)

    @staticmethod
    def _like(stage: Stage) -> Stage:
        return replace(stage, said=[], restored=[], feed=None, rounds=[], acked=AckedNodes())
