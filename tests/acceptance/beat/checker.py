"""
What must be true of a scene's history; every rule says what it found, with the runs that show it.

A tick is identified by its entry and due time. A gap is allowed where one leader gave way to the
next because of something that the scene did to the first, and nowhere else. That is read from the
fencing tokens of the ticks around it, not from clocks.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tests.acceptance.beat.history import History, Run, Sent

#: Due times are whole numbers of intervals, which floats come close to.
_CLOSE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A rule that did not hold, and what shows it."""

    rule: str
    what: str
    shown_by: Sequence[Run | Sent] = ()

    def __str__(self) -> str:
        return "\n    ".join([f"{self.rule}: {self.what}", *map(str, self.shown_by)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """
    Ticks that no body ran for, between two that one ran for.

    Attributes:
        before: the last run before it.
        after: the first run after it.
        missed: how many ticks there are in between.
    """

    before: Run
    after: Run
    missed: int

    @property
    def length(self) -> float:
        """Seconds between the due times around it."""
        return _due(self.after) - _due(self.before)

    @property
    def is_handover(self) -> bool:
        """Whether another leader sent what came after it."""
        return self.before.token != self.after.token


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """
    Something that the scene did to a leader.

    Attributes:
        what: its name in messages.
        token: that of the leader.
        longest: the longest gap that may come of it, in seconds.
        is_sudden: it may have come between the sending of a message and the record of it.
    """

    what: str
    token: int
    longest: float
    is_sudden: bool = True


def check_once(runs: Iterable[Run]) -> Iterator[Violation]:
    """No tick's body runs twice."""
    seen: dict[tuple[str, float], list[Run]] = defaultdict(list)
    for run in runs:
        if run.due is not None:
            seen[run.entry, round(run.due, 3)].append(run)
    for (entry, due), copies in seen.items():
        if len(copies) > 1:
            yield Violation(
                rule="a tick's body runs once",
                what=f"{entry} due at {due} ran {len(copies)} times",
                shown_by=copies,
            )


def check_dated(runs: Iterable[Run]) -> Iterator[Violation]:
    """Every body knows its tick: what it does not know, nothing here can judge."""
    for run in runs:
        if run.due is None:
            yield Violation(
                rule="a body knows its tick", what=f"{run.entry} ran for none", shown_by=[run]
            )


def check_grid(runs: Iterable[Run], every: float) -> Iterator[Violation]:
    """Due times are multiples of the interval since the epoch."""
    for run in runs:
        if run.due is not None and abs(run.due - round(run.due / every) * every) > _CLOSE:
            yield Violation(
                rule="ticks are on a grid aligned to the epoch",
                what=f"{run.entry} was due at {run.due}, with an interval of {every} s",
                shown_by=[run],
            )


def check_arrival(history: History, excused: Iterable[str] = ()) -> Iterator[Violation]:
    """
    A body runs for every tick that was sent.

    Args:
        history: the scene.
        excused: the kinds of news with which a message may end instead.
    """
    known = {(run.entry, run.due) for run in history.runs}
    allowed = set(excused)
    for message in history.sent:
        if message.due is None or (message.entry, message.due) in known:
            continue
        if allowed.isdisjoint(history.news.get(message.id, ())):
            yield Violation(
                rule="a tick that was sent runs",
                what=f"{message.entry} due at {message.due} was sent by {message.beat} in vain",
                shown_by=[message],
            )


def find_gaps(runs: Iterable[Run], every: float) -> Iterator[Gap]:
    """Yield each series of ticks that are missing between the first and the last run."""
    for mine in _by_entry(runs).values():
        for before, after in itertools.pairwise(sorted(mine, key=_due)):
            missed = round((_due(after) - _due(before)) / every) - 1
            if missed > 0:
                yield Gap(before=before, after=after, missed=missed)


def check_gaps(
    gaps: Iterable[Gap],
    every: float,
    faults: Iterable[Fault] = (),
    *,
    lost: Callable[[Gap, Fault | None], float] = lambda gap, fault: 0.0,
) -> Iterator[Violation]:
    """
    Ticks are missing only where a leader that met with a fault gave way, and not for long.

    Args:
        gaps: where ticks are missing.
        every: the interval.
        faults: what the scene did.
        lost: tells for how many seconds of a gap those who should have closed it did not get to run
            on this machine. It excuses up to twice that time: who runs late also has to catch up.
    """
    by_token: dict[int | None, Fault] = {fault.token: fault for fault in faults}
    for gap in gaps:
        fault = by_token.get(gap.before.token) if gap.is_handover else None
        longest = every if fault is None else fault.longest
        excess = gap.length - longest
        if excess <= _CLOSE or lost(gap, fault) >= excess / 2:
            continue
        yield Violation(
            rule="no tick is missing while a leader is there"
            if fault is None
            else "a gap is as short as promised",
            what=f"{gap.missed} of {gap.before.entry} in {gap.length:g} s, which may be {longest:g}"
            f" s {'by themselves' if fault is None else f'after {fault.what}'};"
            f" {lost(gap, fault):.3f} s of it are the machine's",
            shown_by=[gap.before, gap.after],
        )


def check_reigns(history: History) -> Iterator[Violation]:
    """What a leader sends once a newer one has begun to send does not run."""
    newest: int | None = None
    for message in history.sent:
        if message.token is None:
            continue
        if newest is not None and message.token < newest:
            for run in history.runs:
                if (run.entry, run.due, run.token) == (message.entry, message.due, message.token):
                    yield Violation(
                        rule="what a leader of the past sends does not run",
                        what=f"{run.entry} due at {run.due} ran for leader {message.token}, after"
                        f" {newest} had begun",
                        shown_by=[message, run],
                    )
        newest = max(newest or 0, message.token)


def check_repeats(history: History, faults: Iterable[Fault] = ()) -> Iterator[Violation]:
    """Leaders send no tick twice, but for the last of one that had no time to record it."""
    last = {message.token: message for message in history.sent}
    could_not_record = {last.get(fault.token) for fault in faults if fault.is_sudden}
    sent: dict[tuple[str | None, float], Sent] = {}
    for message in history.sent:
        if message.due is None:
            continue
        before = sent.setdefault((message.entry, message.due), message)
        if before is message:
            continue
        if before not in could_not_record or before.token == message.token:
            yield Violation(
                rule="no tick is sent again that a leader has recorded",
                what=f"{message.entry} due at {message.due} was sent twice",
                shown_by=[before, message],
            )


def check_succession(runs: Iterable[Run]) -> Iterator[Violation]:
    """The later a tick is due, the newer the leader that answers for it."""
    for mine in _by_entry(runs).values():
        for before, after in itertools.pairwise(sorted(mine, key=_due)):
            if before.token is not None and after.token is not None and after.token < before.token:
                yield Violation(
                    rule="no tick of a former leader is due after one of a newer leader",
                    what=f"{after.token} after {before.token}",
                    shown_by=[before, after],
                )


def find_overlaps(runs: Iterable[Run]) -> Iterator[tuple[Run, Run]]:
    """Yield every pair of bodies of one entry that ran at the same time."""
    for mine in _by_entry(runs).values():
        open_: list[Run] = []
        for run in sorted(mine, key=lambda run: run.began):
            open_ = [before for before in open_ if before.ended is None or before.ended > run.began]
            yield from ((before, run) for before in open_)
            open_.append(run)


def check_exclusion(runs: Iterable[Run]) -> Iterator[Violation]:
    """No two bodies of one entry run at once."""
    for first, second in find_overlaps(runs):
        yield Violation(
            rule="bodies of one entry do not overlap",
            what=f"{second.entry} began {second.began:.3f} before another one had ended",
            shown_by=[first, second],
        )


def _by_entry(runs: Iterable[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        found[run.entry].append(run)
    return found


def _due(run: Run) -> float:
    if run.due is None:
        raise ValueError(f"{run} is not dated")
    return run.due
