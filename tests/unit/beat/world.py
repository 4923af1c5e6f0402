"""Beats on a clock of the test's: leaders fail and hours pass in no time, without a thread."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, _state, signals
from kombu.exceptions import OperationalError

from celery_redlock import Lease, RedlockTask
from celery_redlock.beat import RedlockScheduler, broker
from celery_redlock.beat.inner_scheduler import close_without_saving
from celery_redlock.core import Register, VersionedValue, client, lease
from celery_redlock.core.holding import Holding
from celery_redlock.errors import LossReason, RedlockError
from celery_redlock.tasks.config.client import client_for
from celery_redlock.tasks.message.tick import Tick
from celery_redlock.tasks.ticks.entry_state import EntryState
from celery_redlock.transport import memory
from celery_redlock.transport.memory import MemoryNode, VirtualTime

START = datetime(2026, 3, 10, 12, 0, 0, 500_000, tzinfo=UTC)
#: What a pass takes, in seconds.
PASS = 50e-6

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Message:
    """What a beat has sent."""

    beat: str
    at: float
    task: str
    id: str
    tick: Tick | None

    @property
    def told(self) -> tuple[str, str]:
        """Who sent it, and for which due time."""
        return self.beat, "-" if self.tick is None else f"{self.tick.due_at:%H:%M:%S}"


class Watchdog:
    """Renews as the real one does, at a third of the lease, when the world's time comes to it."""

    def __init__(self) -> None:
        self.extend_at: dict[Holding, float] = {}
        self.until: dict[Holding, float] = {}

    def watch(self, held: Holding, max_hold: float, _seen_within: float) -> None:
        self.extend_at.setdefault(held, held.now() + held.ttl / 3)
        self.until[held] = held.now() + max_hold

    def unwatch(self, held: Holding) -> None:
        self.extend_at.pop(held, None)

    def is_current_thread(self) -> bool:
        return False

    def stop_if_idle(self) -> None: ...

    @property
    def next_at(self) -> float:
        return min(self.extend_at.values(), default=math.inf)

    def renew(self) -> None:
        held = min(self.extend_at, key=lambda held: self.extend_at[held])
        if held.now() >= self.until[held]:
            self.unwatch(held)
            held.mark_lost(LossReason.MAX_HOLD)
            return
        try:
            Lease(held).extend()
        except RedlockError:
            self.extend_at[held] = held.now() + held.ttl / 12
        else:
            self.extend_at[held] = held.now() + held.ttl / 3
        if held.lost:
            self.unwatch(held)


@dataclass(eq=False)
class Beat:
    """One beat's process: it ticks, unless it is frozen or dead."""

    name: str
    app: Celery
    scheduler: RedlockScheduler
    watchdog: Watchdog
    next_at: float
    frozen: bool = False
    passes: int = 0
    longest_pass: float = 0.0
    longest_delay: float = 0.0

    @property
    def leads(self) -> bool:
        leadership = self.scheduler._leadership
        return leadership is not None and leadership._lease.is_valid


@dataclass
class World:
    """Five lock nodes, a broker, and beats of one app."""

    schedule: dict[str, Any] = field(
        default_factory=lambda: {"job": {"task": "job", "schedule": 1.0}}
    )
    conf: dict[str, Any] = field(default_factory=dict)
    time: VirtualTime = field(default_factory=lambda: VirtualTime(START.timestamp()))
    log: Any = None

    def __post_init__(self) -> None:
        self.name = f"world-{next(_numbers)}"
        self.nodes = [MemoryNode(f"memory://{self.name}-{n}", self.time) for n in range(5)]
        memory._nodes.update({node.name: node for node in self.nodes})
        self.beats: list[Beat] = []
        self.all_beats: list[Beat] = []
        self.sent: list[Message] = []
        self.current: Beat | None = None
        self.skew: dict[str, float] = {}
        self.broker_is_down = False
        self.publish_fails_with: Callable[[str], Exception | None] = lambda task: None

    @property
    def now(self) -> float:
        return self.time.now()

    def pause_nodes(self, count: int = 5) -> None:
        """Let some lock nodes answer nothing until they are resumed."""
        for node in self.nodes[:count]:
            node.pause()

    def resume_nodes(self) -> None:
        for node in self.nodes:
            node.resume()

    def logged(self, text: str) -> list[str]:
        """Return the lines in the log of the test that have a text."""
        return [message for message in self.log.messages if text in message]

    def app(self, beat: str = "") -> Celery:
        """An app as each process has its own."""
        app = Celery(self.name, broker="memory://", set_as_current=False)
        app.now = lambda: self._wall(beat).astimezone(app.timezone)
        app.conf.update(
            **{
                "redlock_nodes": [node.name for node in self.nodes],
                "redlock_beat_ttl": 12.0,
                "task_default_queue": self.name,
                "result_expires": None,
                "beat_schedule": dict(self.schedule),
                **self.conf,
            }
        )
        self.task(app, "job", lock_key="k")
        self.task(app, "other", lock_key="k")
        return app

    def task(self, app: Celery, name: str, **options: Any) -> Any:
        def body(*args: Any, **kwargs: Any) -> None: ...

        return app.task(base=RedlockTask, name=name, shared=False, **options)(body)

    def beat(self, name: str, **options: Any) -> Beat:
        """Start a beat, which does nothing before its first pass."""
        app = self.app(name)
        # As Celery's service does.
        options.setdefault("schedule_filename", app.conf.beat_schedule_filename)
        scheduler = RedlockScheduler(app, Producer=self._producer(app), **options)
        beat = Beat(name, app, scheduler, Watchdog(), self.now)
        self.beats.append(beat)
        self.all_beats.append(beat)
        return beat

    def run(self, seconds: float) -> list[Message]:
        """Let time pass; return what was sent meanwhile."""
        first, end = len(self.sent), self.now + seconds
        with self._watched():
            while True:
                beat = min(self._awake(), key=_next_event, default=None)
                if beat is None or _next_event(beat) >= end:
                    break
                self.time._now = max(self.now, _next_event(beat))
                self._let(beat)
        self.time._now = max(self.now, end)
        return self.sent[first:]

    def pass_of(self, beat: Beat) -> float:
        """Make one pass of a beat, and return how soon it wants to be called again."""
        with self._watched(), self._as(beat):
            delay = beat.scheduler.tick()
        beat.next_at = self.now + delay
        return delay

    def stop(self, beat: Beat) -> None:
        """Stop a beat as a supervisor does."""
        with self._watched(), self._as(beat):
            beat.scheduler.close()
        self.beats.remove(beat)

    def crash(self, beat: Beat) -> None:
        self.beats.remove(beat)

    def end(self) -> None:
        """Close what beats have left open that were not stopped."""
        for beat in self.all_beats:
            leadership = beat.scheduler._leadership
            if leadership is not None and leadership.inner is not None:
                close_without_saving(leadership.inner)

    def recorded(self) -> dict[str, EntryState]:
        """What the nodes have of the entries."""
        return {
            name: state
            for name, found in self.register().items()
            if (state := EntryState.read(found)) is not None
        }

    def register(self) -> dict[str, VersionedValue]:
        return Register(client_for(self.app()), f"beat:{self.name}").read()

    @contextmanager
    def _as(self, beat: Beat) -> Iterator[None]:
        # Each process has a watchdog of its own; here the one whose beat is running.
        before, self.current = self.current, beat
        WATCHDOGS.append(beat.watchdog)
        current_app = _state._tls.current_app
        # What a schedule file has kept of an entry takes the current app's clock.
        beat.app.set_current()
        try:
            yield
        finally:
            _state._set_current_app(current_app)
            self.current = before
            WATCHDOGS.pop()

    def note(self, task: str, headers: dict[str, Any]) -> None:
        """Note a message that has been sent."""
        tick = Tick.read((headers.get("redlock") or {}).get("tick"))
        assert self.current is not None
        self.sent.append(Message(self.current.name, self.now, task, headers["id"], tick))

    @contextmanager
    def _watched(self) -> Iterator[None]:
        RUNNING.append(self)
        try:
            yield
        finally:
            RUNNING.pop()

    def _awake(self) -> list[Beat]:
        return [beat for beat in self.beats if not beat.frozen]

    def _let(self, beat: Beat) -> None:
        with self._as(beat):
            if beat.watchdog.next_at <= beat.next_at:
                beat.watchdog.renew()
                return
            begun = self.now
            delay = beat.scheduler.tick()
            beat.passes += 1
            beat.longest_pass = max(beat.longest_pass, self.now - begun)
            beat.longest_delay = max(beat.longest_delay, delay)
            beat.next_at = self.now + PASS + max(0.0, delay)
            if delay > 0 and beat.scheduler.should_sync():
                beat.scheduler._do_sync()

    def _wall(self, beat: str) -> datetime:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self.time.wall_us())
        return moment + timedelta(seconds=self.skew.get(beat, 0.0))

    def _producer(self, app: Celery) -> type:
        world = self

        class Producer(app.amqp.Producer):  # type: ignore[misc, name-defined]
            def publish(self, *args: Any, **kwargs: Any) -> Any:
                if world.broker_is_down:
                    raise OperationalError("the broker hangs")
                error = world.publish_fails_with(kwargs["headers"]["task"])
                if error is not None:
                    raise error
                return super().publish(*args, **kwargs)

        return Producer


MakeWorld = Callable[..., World]

#: The world whose time passes; the last one.
RUNNING: list[World] = []


@signals.after_task_publish.connect(weak=False)
def _note(sender: str, headers: dict[str, Any], **_: Any) -> None:
    if RUNNING:
        RUNNING[-1].note(sender, headers)


#: The watchdog of the process that is running; the last one.
WATCHDOGS: list[Watchdog] = [Watchdog()]


def _next_event(beat: Beat) -> float:
    return min(beat.next_at, beat.watchdog.next_at)


def worlds(
    monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture | None = None
) -> Iterator[MakeWorld]:
    """Have leases renewed and brokers fail as the worlds say that are made meanwhile."""
    made: list[World] = []
    for module in (client, lease):
        monkeypatch.setattr(module, "process_watchdog", lambda: WATCHDOGS[-1])
    connect = broker.limited_connection

    def limited_connection(app: Any, timeout: float) -> Any:
        connection = connect(app, timeout)
        ensure = connection.ensure_connection

        def ensure_connection(*args: Any, **kwargs: Any) -> Any:
            if any(world.broker_is_down for world in made):
                raise ConnectionRefusedError("refused")
            return ensure(*args, **kwargs)

        connection.ensure_connection = ensure_connection
        return connection

    monkeypatch.setattr(broker, "limited_connection", limited_connection)

    def make(**options: Any) -> World:
        world = World(log=log, **options)
        made.append(world)
        return world

    yield make
    for world in made:
        world.end()
