"""
What happened to ticks, as beats and bodies have written it down.

All times are readings of one clock that all processes share and that no test shifts; only `due` is
a wall clock's.
"""

from __future__ import annotations

import array
import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from tests.acceptance.apps.beat_pulse import PULSE, STAMP
from tests.acceptance.apps.visible import instant

Note = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """
    A body that ran for a tick.

    Attributes:
        entry: the entry of the schedule.
        due: when the tick was due, in seconds since the epoch; None where nothing tells.
        token: the fencing token of the leader that sent it; None from a plain beat.
        id: the task's id.
        began: when the body was entered.
        ended: when it was left; None if it never was.
        by: the exception that ended it.
        pid: the process.
    """

    entry: str
    due: float | None
    token: int | None = None
    id: str
    began: float
    ended: float | None = None
    by: str | None = None
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A message that a beat has sent; its tick is as a run's, and may be absent as a whole."""

    beat: str
    entry: str | None
    due: float | None
    token: int | None = None
    id: str
    at: float


@dataclass(frozen=True, slots=True)
class Pulse:
    """The times at which a process did get to run, stamped every `PULSE` seconds."""

    stamps: Sequence[float]

    @classmethod
    def read(cls, path: Path) -> Self:
        content = path.read_bytes() if path.exists() else b""
        stamps = array.array("d")
        stamps.frombytes(content[: len(content) - len(content) % STAMP.size])
        return cls(stamps)

    def lost(self, since: float, until: float) -> float:
        """Return the seconds from `since` to `until` in which the process did not get to run."""
        within = [since, *(stamp for stamp in self.stamps if since < stamp < until), until]
        return sum(max(0.0, after - before - PULSE) for before, after in itertools.pairwise(within))


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """
    One scene.

    Attributes:
        runs: the bodies, in the order in which they began.
        sent: the messages, in the order in which they were sent.
        news: what else befell a task, by its id, the newest last.
    """

    runs: Sequence[Run] = ()
    sent: Sequence[Sent] = ()
    news: Mapping[str, Sequence[str]] = field(default_factory=dict)


def read_history(notes: Iterable[Note]) -> History:
    """Put the notes of beats and bodies together."""
    runs: list[Run] = []
    sent: list[Sent] = []
    news: dict[str, list[str]] = {}
    running: dict[tuple[str, int], int] = {}
    for note in notes:
        match note["event"]:
            case "began":
                running[note["id"], note["pid"]] = len(runs)
                runs.append(
                    Run(
                        entry=note["entry"],
                        due=note["due"],
                        token=note["token"],
                        id=note["id"],
                        began=note["at"],
                        pid=note["pid"],
                    )
                )
            case "ended":
                place = running.pop((note["id"], note["pid"]))
                runs[place] = replace(runs[place], ended=note["at"], by=note["by"])
            case "sent":
                sent.append(
                    Sent(
                        beat=note["beat"],
                        entry=note["entry"],
                        due=note["due"],
                        token=note["token"],
                        id=note["id"],
                        at=note["at"],
                    )
                )
            case "news":
                news.setdefault(note["id"], []).append(note["kind"])
    return History(
        runs=sorted(runs, key=lambda run: run.began),
        sent=sorted(sent, key=lambda message: message.at),
        news=news,
    )


def wall(at: float) -> float:
    """Return what a right wall clock showed at this instant."""
    # Of several pairs of readings that between which nothing came.
    return at + max(time.time() - instant() for _ in range(5))


def since_due(run: Run) -> float:
    """Return the instant at which the tick of a run was due, by a right wall clock."""
    assert run.due is not None
    return run.began - (wall(run.began) - run.due)


def date_by_sending(history: History, every: float) -> History:
    """Date runs that nothing dates: each was due at the last full interval before its sending."""
    due = {message.id: wall(message.at) // every * every for message in history.sent}
    return replace(
        history,
        runs=[
            run if run.due is not None else replace(run, due=due[run.id]) for run in history.runs
        ],
    )
