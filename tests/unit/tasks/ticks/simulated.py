"""A beat on a clock of the test's: days pass in no time, and nothing depends on the machine."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, current_app, signals
from celery.beat import Scheduler

from celery_redlock import RedlockTask
from celery_redlock.tasks.message.tick import Tick
from celery_redlock.tasks.ticks.entry_ticks import EntryTicks
from celery_redlock.tasks.ticks.tick_stamping import TickScheduler, adopt

_numbers = itertools.count(1)
#: What one pass of a beat takes, in seconds.
PASS = 50e-6


def at(text: str) -> datetime:
    """Return a UTC moment."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@dataclass
class Clock:
    """A wall clock that stands still until it is advanced."""

    moment: datetime

    def advance(self, seconds: float) -> None:
        self.moment += timedelta(seconds=seconds)


@dataclass(frozen=True)
class Sent:
    """One message: what the beat's clock showed, and what is in its headers."""

    at: datetime
    task: str
    headers: dict[str, Any]
    body: Any

    @property
    def header(self) -> Any:
        return self.headers.get("redlock")

    @property
    def tick(self) -> Tick | None:
        return Tick.read((self.header or {}).get("tick"))


@dataclass
class SimulatedBeat:
    """A scheduler with its app, and what it has sent."""

    start: datetime
    conf: dict[str, Any] = field(default_factory=dict)
    scheduler_class: Callable[..., Any] = Scheduler
    with_ticks: bool = True
    protect: Callable[[Any], bool] = lambda entry: True
    mixin: type[TickScheduler] = TickScheduler
    scheduler_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        name = f"beat-{next(_numbers)}"
        self.clock = Clock(self.start)
        self.app = Celery(name, broker="memory://", set_as_current=False)
        self.app.now = lambda: self.clock.moment.astimezone(self.app.timezone)
        self.app.conf.update(
            **{
                "redlock_nodes": [f"memory://{name}"],
                "task_default_queue": name,
                "result_expires": None,
                **self.conf,
            }
        )
        self.sent: list[Sent] = []
        self.passes = 0
        self.job = self.task("job")

    def task(self, name: str, **options: Any) -> Any:
        """Declare a task that locks, unless its options say otherwise."""
        options = {"base": RedlockTask, "lock_key": "k", **options}

        def body(*args: Any, **kwargs: Any) -> None: ...

        return self.app.task(name=name, shared=False, **options)(body)

    def open(self) -> Any:
        """Make the scheduler, and stamp what it sends."""
        self.scheduler = self.scheduler_class(self.app, **self.scheduler_options)
        if self.with_ticks:
            adopt(self.scheduler, self.mixin, EntryTicks(self.app, self.protect))
        return self.scheduler

    def run(self, seconds: float) -> list[Sent]:
        """Let the beat run for so long on its clock; return what it sent meanwhile."""
        first, end = len(self.sent), self.clock.moment + timedelta(seconds=seconds)
        with self.watched(), self.current():
            if not hasattr(self, "scheduler"):
                self.open()
            while self.clock.moment < end:
                delay = self.scheduler.tick()
                self.passes += 1
                self.clock.advance(PASS + max(0.0, delay or 0.0))
        return self.sent[first:]

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the app the current one; what was read from a file belongs to that."""
        before = current_app._get_current_object()
        self.app.set_current()
        try:
            yield
        finally:
            before.set_current()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note the messages that this app sends meanwhile."""

        def note(sender: Any, headers: Any, body: Any, **_: Any) -> None:
            self.sent.append(Sent(self.clock.moment, sender, dict(headers), body))

        # Not weakly: in older versions of Celery a publisher loses sight of all receivers when one
        # has died and another was disconnected.
        signals.after_task_publish.connect(note, weak=False, dispatch_uid="watched")
        try:
            yield
        finally:
            signals.after_task_publish.disconnect(dispatch_uid="watched")

    def ticks(self, seconds: float) -> list[str]:
        """Let the beat run, and return when its ticks were due, in UTC."""
        return [str(sent.tick.due_at)[:-6] if sent.tick else "-" for sent in self.run(seconds)]


START = at("2026-03-10T12:00:00.5")
MINUTE = at("2026-03-10T12:01:00")


def beat(entry: dict[str, Any] | None = None, name: str = "e", **options: Any) -> SimulatedBeat:
    """Return a beat with one entry, of a minute unless it says otherwise."""
    made = SimulatedBeat(START, **options)
    made.app.conf.beat_schedule = {name: {"task": "job", "schedule": 60, **(entry or {})}}
    return made


def one_message(made: SimulatedBeat) -> Sent:
    """Return the one message of the first minute."""
    (sent,) = made.run(60)
    return sent


def messages_of(log: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    """Return what the modules of ticks have logged."""
    return [
        record.getMessage()
        for record in log.records
        if record.levelno >= level and record.name.startswith("celery_redlock.tasks.ticks")
    ]
