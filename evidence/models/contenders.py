"""
What a contender may do: start, take answers, hold, extend, release.

Every step is the shipped client's, run once for each distinct input.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cache

from celery_redlock.core.attempt import AcquireParams
from celery_redlock.core.settings import DEFAULT_POLICY, ClientSettings
from celery_redlock.protocol.commands import Script, Waiter
from celery_redlock.protocol.keys import Key
from celery_redlock.protocol.rounds import Phase
from celery_redlock.protocol.votes import Quarantined, Refused
from evidence.models import stepper
from evidence.models.config import Contender, Setting
from evidence.models.exchange import Move, Talk, distinct, took
from evidence.models.handover import HandOver, barring, granted_by, previous_of
from evidence.models.state import NAMES, Part, Tables
from evidence.models.stepper import GRACE, LONG, MOMENT, TICK, Stage

#: The largest token that was granted before, of each key and slot.
Floor = tuple[tuple[str, int], ...]

#: What a node says that has done nothing.
_NOTHING = (Refused, Quarantined)


def terms_of(setting: Setting) -> list[AcquireParams]:
    """Return what each contender asks for."""
    return [
        AcquireParams(
            settings=ClientSettings(
                ttl=setting.ttl * TICK,
                max_ttl=setting.max_ttl * TICK,
                takeover=0.0,
                key_prefix="",
                drift_factor=setting.drift_factor,
                node_timeout=1.0,
                quarantine_ms=setting.max_ttl,
                retry=DEFAULT_POLICY,
            ),
            keys=tuple(key if isinstance(key, Key) else Key(key, key) for key in contender.keys),
            ttl=(GRACE if contender.reserves else setting.ttl) * TICK,
            label=NAMES[index if contender.after is None else contender.after],
            previous=previous_of(setting, contender),
            as_reservation=contender.reserves,
            waiter=_waiter(index, contender),
        )
        for index, contender in enumerate(setting.contenders)
    ]


def _waiter(index: int, contender: Contender) -> Waiter | None:
    grace = LONG if contender.fair else 0
    return Waiter(NAMES[index], index + 1, LONG, grace) if contender.waits else None


@dataclass(slots=True)
class ContenderMoves:
    """The moves of contenders."""

    _setting: Setting
    _tables: Tables
    _params: list[AcquireParams]
    _reached: set[str]
    _found: Callable[..., list[Move]] = field(init=False)
    _hands_over: bool = field(init=False)
    _bars: bool = field(init=False)
    _talk: Talk = field(init=False)
    _hand_over: HandOver = field(init=False)
    _places: list[frozenset[str]] = field(init=False)

    def __post_init__(self) -> None:
        self._found = cache(lambda *now: list(self._find(*now)))
        self._places = [frozenset(name for name, _ in params.places) for params in self._params]
        self._hands_over = any(params.previous or params.as_reservation for params in self._params)
        # Where keys vanish at any moment, a quorum may have something at both ends and not between.
        stays = self._setting.timed or not self._setting.expiries
        in_order = any(contender.fair for contender in self._setting.contenders)
        self._bars = in_order or (self._hands_over and stays)
        self._talk = Talk(self._tables, self._hands_over)
        self._hand_over = HandOver(
            self._setting, self._tables, self._params, self._reached, self._talk
        )

    def moves_of(
        self, globe: int, columns: tuple[int, ...], parts: tuple[int, ...], index: int
    ) -> list[Move]:
        """Return what a contender may do now."""
        part = parts[index]
        lanes = tuple(self._tables.columns.things[column][1][index] for column in columns)
        stands = self._tables.parts.things[part].stands
        floor: Floor | None = None
        barred: frozenset[str] = frozenset()
        if stands == "idle":
            floor = self._floor(parts, index)
            if floor is not None and self._bars:
                barred = barring(self._setting, self._tables, columns, index)
        elif stands == "ended":
            return []
        time = self._tables.globes.things[globe].time
        return self._found(index, part, floor, time, lanes, barred)

    def _floor(self, parts: tuple[int, ...], index: int) -> Floor | None:
        """Return the largest tokens granted before, or None while it is not this one's turn."""
        contender = self._setting.contenders[index]
        floor: dict[str, int] = {}
        for other, number in enumerate(parts):
            part: Part = self._tables.parts.things[number]
            if other == contender.after and part.stands != "ended":
                return None
            if other == contender.behind and part.held is None and part.stands != "ended":
                return None
            if contender.takes_over == NAMES[other] and (
                part.stands not in ("reserved", "sent") and part.held is None
            ):
                return None
            if part.held is not None:
                token = part.held.token
                for place in part.held.places(self._params[other]) & self._places[index]:
                    floor[place] = max(floor.get(place, 0), token)
        return tuple(sorted(floor.items()))

    def _find(
        self,
        index: int,
        number: int,
        floor: Floor | None,
        time: int,
        lanes: tuple[int, ...],
        barred: frozenset[str],
    ) -> Iterator[Move]:
        part: Part = self._tables.parts.things[number]
        if part.stands == "idle":
            contender = self._setting.contenders[index]
            if floor is not None and contender.starts_from <= time <= contender.starts_by:
                yield self._start(index, floor, time, lanes, barred)
        elif part.stands in ("asks", "raises"):
            yield from distinct(self._decide(index, part, time, lanes))
        elif part.stands == "holds":
            yield from self._hold(index, part, time, lanes)
        elif part.stands == "extends":
            yield from distinct(self._extended(index, part, time, lanes))
        else:
            stage = self._stage(time, index)
            yield from distinct(self._hand_over.moves(index, part, stage, lanes))

    def _stage(self, time: int, index: int) -> Stage:
        contender = self._setting.contenders[index]
        return Stage(self._setting.nodes, time * TICK, time * 1000 + contender.candidate)

    def _start(
        self,
        index: int,
        floor: Floor,
        time: int,
        lanes: tuple[int, ...],
        barred: frozenset[str] = frozenset(),
    ) -> Move:
        stage = self._stage(time, index)
        stepper.run_attempt(index, self._params[index], stage)
        label = (f"{NAMES[index]} starts", ())
        then = Part("asks", time, floor, barred=barred)
        return label, self._tables.parts.number(then), self._talk.said(stage, lanes), ""

    def _decide(self, index: int, part: Part, time: int, lanes: tuple[int, ...]) -> Iterator[Move]:
        name = NAMES[index]
        feeds = self._talk.feeds(lanes, self._setting.contenders[index].gives_up)
        orders = self._orders(index, part)
        for (feed, gives_up), catches, order in itertools.product(
            feeds, self._catching(index), orders
        ):
            stage = self._stage(part.since, index)
            stage.answered_at = stage.resumed_at = time * TICK + MOMENT
            stage.feed = tuple((order[node], vote) for node, vote, _ in feed)
            stage.gives_up = gives_up
            stage.known = self._talk.known_done(lanes)
            if catches and part.stands == "asks":
                stage.caught = granted_by(self._tables, lanes)
            if part.stands == "raises":
                counted = tuple(self._tables.lanes.things[lane].counted for lane in lanes)
                stage.restored = [(part.scalars, counted)]
            end = stepper.run_attempt(index, self._params[index], stage)
            if stage.decided != (0 if gives_up else len(feed)):
                continue  # not enough to decide, or a shorter way to decide the same
            label = took(name, feed, gives_up)
            if end is None:
                self._reached.add("second round")
                scalars, votes = stepper.snapshot(stage.waits)
                then = replace(part, stands="raises", scalars=scalars)
                lanes_then = self._talk.said(stage, lanes, votes, acked=self._knows(index, stage))
                label = (f"{label[0]}: second round", label[1])
                yield label, self._tables.parts.number(then), lanes_then, ""
                continue
            phase, held = end
            danger = ""
            self._reached.add(f"{phase.name.lower()} ({part.stands})")
            if phase is Phase.GRANTED and self._setting.contenders[index].reserves:
                then = Part("reserved", barred=part.barred)
                label = (f"{label[0]}: reserved", label[1])
                yield label, self._tables.parts.number(then), self._talk.noted(stage, lanes), ""
                continue
            if phase is Phase.GRANTED:
                if self._setting.period:
                    held = replace(held, since=part.since)
                then = Part("holds", 0, part.floor, None, held, barred=part.barred)
                if stage.time >= held.valid_until:
                    danger = "an attempt is granted although its time is over"
                told = f"holds with token {held.token}"
                if held.slots:
                    told += f" in slot {', '.join(map(str, held.slots))}"
                if self._setting.timed:
                    told += f", trusted until {held.valid_until / TICK:.0f} ms"
            else:
                told = phase.name
                undone = 0
                if self._params[index].previous is not None:
                    refused = {node for node, vote, _ in feed if isinstance(vote, _NOTHING)}
                    # What somebody else has on a quorum is not given back.
                    sure = set() if phase is Phase.CONTENDED else stage.acked
                    undone = len(set(range(len(lanes))) - sure - refused)
                    self._reached.add("undone: all known" if not undone else "undone: some unknown")
                then = Part(
                    "ended",
                    scalars=phase.name if self._setting.split or self._setting.wakes else None,
                    undone=undone,
                )
                freed = {
                    node
                    for command, nodes, _ in stage.said
                    for node in nodes
                    if command.script is Script.RELEASE
                }
                freed |= {order[node] for node, vote, _ in feed if isinstance(vote, Refused)}
                if len(freed) < len(lanes):
                    danger = "an attempt has ended and may have left a key on a node"
            label = (f"{label[0]}: {told}", label[1])
            knows = () if then.held is None else self._knows(index, stage)
            lanes_then = self._talk.said(stage, lanes, acked=knows)
            yield label, self._tables.parts.number(then), lanes_then, danger

    def _orders(self, index: int, part: Part) -> tuple[range, ...]:
        """Return in which orders the nodes may be listed: of slots alike, the first one is had."""
        nodes = range(self._setting.nodes)
        has_limit = part.stands == "asks" and len(self._places[index]) > len(
            self._params[index].keys
        )
        return (nodes, nodes[::-1]) if has_limit else (nodes,)

    def _knows(self, index: int, stage: Stage) -> Collection[int]:
        if self._params[index].previous is None:
            return ()
        return stage.known or stage.acked

    def _catching(self, index: int) -> tuple[bool, ...]:
        return (False,) if self._params[index].previous is None else (False, True)

    def _hold(self, index: int, part: Part, time: int, lanes: tuple[int, ...]) -> Iterator[Move]:
        contender = self._setting.contenders[index]
        params = self._params[index]
        held = part.held
        assert held is not None
        if part.extended < contender.extends:
            stage = self._stage(time, index)
            stepper.run_extend(held, params, stage, contender.extends_to)
            if stage.said:
                then = replace(part, stands="extends", since=time, extended=part.extended + 1)
                label = (f"{NAMES[index]} extends", ())
                yield label, self._tables.parts.number(then), self._talk.said(stage, lanes), ""
        if contender.ends != ("release",):
            stage = self._stage(time, index)
            yield from self._hand_over.moves(index, part, stage, lanes)
        elif contender.releases:
            stage = self._stage(time, index)
            stage.time += MOMENT
            stepper.run_release(held, params, stage)
            ended = Part("ended", held=replace(held, valid_until=0.0))
            label = (f"{NAMES[index]} releases", ())
            yield (
                label,
                self._tables.parts.number(ended),
                self._talk.said(stage, lanes, waits=False),
                "",
            )

    def _extended(
        self, index: int, part: Part, time: int, lanes: tuple[int, ...]
    ) -> Iterator[Move]:
        held = part.held
        assert held is not None
        for feed, gives_up in self._talk.feeds(lanes, self._setting.contenders[index].gives_up):
            earliest = max((arrived for _, _, arrived in feed), default=time)
            for taken in range(earliest, time + 1) if self._setting.timed else (time,):
                stage = self._stage(part.since, index)
                stage.answered_at = taken * TICK + MOMENT
                stage.resumed_at = time * TICK + MOMENT
                stage.feed = tuple((node, vote) for node, vote, _ in feed)
                stage.gives_up = gives_up
                extends_to = self._setting.contenders[index].extends_to
                end = stepper.run_extend(held, self._params[index], stage, extends_to)
                if end is None:
                    continue
                told, now = end
                danger = ""
                if now.valid_until > held.valid_until and stage.time >= held.valid_until:
                    danger = "a lease that was over came back"
                if now.valid_until < held.valid_until:
                    danger = "an extension shortened the lease"
                for command, _, _ in stage.said:
                    self._reached.add(f"says {command.script}")
                    if command.script is Script.HEAL and stage.time >= held.valid_until:
                        danger = "keys are healed although the time that was sure is over"
                self._reached.add(f"extension: {told}")
                if told == "lost":
                    now = replace(now, valid_until=0.0)
                then = replace(part, stands="holds", since=0, held=now)
                text, positions = took(NAMES[index], feed, gives_up)
                if self._setting.timed:
                    text += f" at {taken} ms"
                    told += f", trusted until {now.valid_until / TICK:.0f} ms"
                label = (f"{text}: extension {told}", positions)
                yield label, self._tables.parts.number(then), self._talk.said(stage, lanes), danger
