"""
What happened, as written down by workers and nemesis, one JSON object on each line.

All times are readings of one clock that all processes of this machine share and that goes on while
a process is stopped, so they can be compared whoever wrote them.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = Mapping[str, Any]

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Read the clock of all histories, the one that leases are measured with."""
    return time.clock_gettime(_CLOCK)


#: Seconds between two looks whether a process gets to run, and without one that are a stall.
TICK, STALLED = 0.025, 0.08


def watch_for_stalls(note: Callable[..., None], over: threading.Event) -> None:
    """Note when this process did not get to run, for whatever reason, until it is over."""
    last = now()
    while not over.wait(TICK):
        present = now()
        if present - last > STALLED:
            note("stalled", t=present, since=last)
        last = present


class Journal:
    """Appends events to one file; each is there as soon as `note` returns, come what may."""

    def __init__(self, path: Path, **always: Any) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._always = always

    def note(self, event: str, **details: Any) -> None:
        """Write one event, stamped now unless it brings its time `t`."""
        line = {"t": now(), "event": event, **self._always, **details}
        os.write(self._file, (json.dumps(line) + "\n").encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_events(directory: Path) -> list[Event]:
    """
    Return all events below a directory in the order of their times.

    What follows the last end of a line is the half of an event in which its writer was killed:
    `note` had not returned.
    """
    found = [
        json.loads(line)
        for path in directory.glob("*.jsonl")
        for line in path.read_text().split("\n")[:-1]
    ]
    return sorted(found, key=lambda event: event["t"])


@dataclass(slots=True, kw_only=True)
class Hold:
    """
    One grant of a lock and what became of it.

    Attributes:
        until: end of trust as last extended.
        releasing: when the release began, None if it never did.
        lost: when the loss was reported.
        events: the lines that tell of it.
    """

    id: str
    worker: str
    key: str
    invoked: float
    granted: float
    token: int
    until: float
    releasing: float | None = None
    lost: float | None = None
    events: list[Event] = field(default_factory=list)

    @property
    def end(self) -> float:
        """When its holder no longer trusted it."""
        ends = (self.until, self.releasing, self.lost)
        return max(self.granted, min(end for end in ends if end is not None))

    @property
    def promised_until(self) -> float:
        """Until when nobody else may be granted the lock, whatever its holder believes."""
        ends = (self.until, self.releasing)
        return max(self.granted, min(end for end in ends if end is not None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A worker that did not run: stopped by the nemesis, or (`stall`) starved by the machine."""

    worker: str
    start: float
    end: float
    stall: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All that the checks look at."""

    holds: list[Hold]
    pauses: list[Pause]
    killed: Mapping[str, float]
    events: list[Event]

    def paused(self, worker: str, start: float, end: float) -> Pause | None:
        """Return a pause of this worker that touches the interval; stops before stalls."""
        touching = [
            pause
            for pause in self.pauses
            if pause.worker == worker and pause.start <= end and pause.end >= start
        ]
        return min(touching, key=lambda pause: pause.stall, default=None)


def build_history(events: Iterable[Event]) -> History:
    """Put the events of one run together."""
    events = list(events)
    holds = {hold.id: hold for hold in _holds(events)}
    for event in events:
        hold = holds.get(event.get("hold", ""))
        if hold is None:
            continue
        hold.events.append(event)
        if "until" in event:
            hold.until = max(hold.until, event["until"])
        if event["event"] == "releasing":
            hold.releasing = event["t"]
        elif event["event"] == "lost":
            hold.lost = event["t"]
    return History(
        holds=sorted(holds.values(), key=lambda hold: hold.granted),
        pauses=list(_pauses(events)),
        killed={event["worker"]: event["t"] for event in events if event["event"] == "killed"},
        events=events,
    )


def _holds(events: list[Event]) -> Iterator[Hold]:
    invoked = {event["hold"]: event["t"] for event in events if event["event"] == "invoked"}
    for event in events:
        if event["event"] == "granted":
            yield Hold(
                id=event["hold"],
                worker=event["worker"],
                key=event["key"],
                invoked=invoked[event["hold"]],
                granted=event["t"],
                token=event["token"],
                until=event["until"],
            )


def _pauses(events: list[Event]) -> Iterator[Pause]:
    stopped: dict[str, float] = {}
    for event in events:
        if event["event"] == "stopping":
            stopped[event["worker"]] = event["t"]
        elif event["event"] in ("continued", "killed") and event["worker"] in stopped:
            start = stopped.pop(event["worker"])
            yield Pause(worker=event["worker"], start=start, end=event["t"], stall=False)
        elif event["event"] == "stalled":
            yield Pause(worker=event["worker"], start=event["since"], end=event["t"], stall=True)
    for worker, start in stopped.items():
        yield Pause(worker=worker, start=start, end=float("inf"), stall=False)
