"""
The scheduler class that is given to `celery beat`.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from celery.beat import Scheduler
from celery.utils.imports import qualname

from celery_redlock.beat.leading import Leading
from celery_redlock.beat.standby import Standby
from celery_redlock.beat.timings import read_timings
from celery_redlock.beat.wrapped import cancel_exit_write, wrapped_class
from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.config.client import redlock_for
from celery_redlock.tasks.config.settings import read_settings
from celery_redlock.tasks.schedules.names import schedule_name
from celery_redlock.transport import parse_nodes

__all__ = ["RedlockScheduler"]

NO_ENTRIES: Mapping[str, Any] = MappingProxyType({})


class RedlockScheduler(Scheduler):  # type: ignore[misc]  # Celery is untyped
    """
    A beat that fails over: of any number of beats with this scheduler one leads and sends.

    Guarantee: a tick that a leader has recorded is not sent again by a later one, whichever beat
    that is, and whatever the wrapped scheduler remembers; a standby leads within one lease after
    the leader crashed, and within one retry period after it was stopped. Limit: the broker knows no
    fencing. A leader that is frozen while it sends may send that one message late, and a leader
    that dies between sending and recording has its tick sent twice. The workers drop the second one
    if the task locks (or with `redlock_dedupe`); for a task without this package it runs twice.

    It never fails because of a lock. What the wrapped scheduler raises ends the beat, as it would
    end a plain one.

    Use it with `celery -A proj beat -S redlock`, or `beat_scheduler = "redlock"`. It wraps
    Celery's `Scheduler`, or what `redlock_beat_scheduler` says.
    """

    #: What it sends is stamped by itself.
    identifies_ticks = True

    def __init__(
        self,
        app: Any,
        schedule: Any = None,
        max_interval: float | None = None,
        Producer: Any = None,  # noqa: N803 - as in Celery
        lazy: bool = False,
        sync_every_tasks: int | None = None,
        **kwargs: Any,
    ) -> None:
        settings = read_settings(app)
        self._timings = read_timings(settings)
        self._wrapped = wrapped_class(settings.beat_scheduler, RedlockScheduler)
        self._name = schedule_name(app)
        self._options = {
            "schedule": schedule,
            "max_interval": max_interval,
            "Producer": Producer,
            "sync_every_tasks": sync_every_tasks,
            **kwargs,
        }
        self._standby: Standby | None = None
        self._leading: Leading | None = None
        self._is_to_close = False
        # Nothing is opened here, lazy or not: only a leader opens anything.
        super().__init__(
            app,
            max_interval=max_interval,
            Producer=Producer,
            lazy=True,
            sync_every_tasks=sync_every_tasks,
        )
        self.max_interval: float = min(_seconds(self.max_interval), self._timings.retry)

    @property
    def schedule(self) -> Any:
        """The entries of the wrapped scheduler; none, and none can be added, while it stands by."""
        inner = self._inner
        return NO_ENTRIES if inner is None else inner.schedule

    def tick(self, *_: Any, **__: Any) -> float:
        """
        Make one pass; return the seconds until the next, at most a retry period.

        Raises:
            SystemExit: a signal has ended the beat in this pass.
        """
        try:
            delay = self._pass()
        finally:
            told = self._close_if_told()
        if told:
            # The handler's own has gone astray: in a __del__ Python only prints it, and the beat
            # would lead again.
            raise SystemExit
        return delay

    def should_sync(self) -> bool:
        """Tell whether the wrapped scheduler wants to write what it remembers."""
        inner = self._inner
        return inner is not None and bool(inner.should_sync())

    def _do_sync(self) -> None:
        try:
            if self._inner is not None:
                self._inner._do_sync()
        finally:
            told = self._close_if_told()
        if told:
            raise SystemExit

    def sync(self) -> None:
        """Let the wrapped scheduler write what it remembers, if this beat leads."""
        if self._inner is not None:
            self._inner.sync()

    def close(self) -> None:
        """
        Hand over to another beat, now or, in the middle of a pass, as soon as that has ended.

        Idempotent. Celery calls this from its handler of SIGTERM, in the middle of anything, and
        then ends the pass with `SystemExit`. To work here would be to wait for locks that the very
        same thread holds.
        """
        self._is_to_close = True
        if not self._is_at_work():
            self._close_now()

    @property
    def info(self) -> str:
        """What Celery's banner shows."""
        settings, timings = read_settings(self.app), self._timings
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said again when the nodes are used
            nodes = ", ".join(node.name for node in parse_nodes(settings.nodes))
        inner = self._wrapped(app=self.app, lazy=True, **self._options)
        cancel_exit_write(inner)
        lines = [
            f"    . lock nodes -> {nodes}",
            f"    . schedule -> {self._name}",
            f"    . lease -> {timings.ttl:.3g}s, renewed within {timings.renew_deadline:.3g}s, "
            f"tried every {timings.retry:.3g}s",
            f"    . wraps -> {qualname(self._wrapped)}",
            inner.info,
        ]
        return "\n".join(line for line in lines if line)

    @property
    def _inner(self) -> Any:
        return None if self._leading is None else self._leading.inner

    def _pass(self) -> float:
        standby = self._standby or self._begin()
        leading = self._leading
        if leading is None:
            lease = standby.attempt()
            if lease is None:
                return standby.pause
            leading = self._leading = Leading(
                self, redlock_for(self.app), lease, self._name, self._timings, self._build
            )
            standby.settle()
        delay = leading.tick()
        if leading.ending is None:
            return min(delay, self.max_interval)
        leading.close()
        self._leading = None
        standby.hold_back(leading.ending.hold_back)
        return standby.pause

    def _begin(self) -> Standby:
        self._standby = Standby(redlock_for(self.app), self._name, self._timings)
        return self._standby

    def _build(self) -> Any:
        return self._wrapped(app=self.app, lazy=False, **self._options)

    def _close_if_told(self) -> bool:
        told = self._is_to_close
        if told:
            self._close_now()
        return told

    def _close_now(self) -> None:
        if self._leading is not None:
            self._leading.close()
            self._leading = None
        if self._standby is not None:
            self._standby.undo()
            self._standby = None
        self._is_to_close = False

    def _is_at_work(self) -> bool:
        """
        Tell whether this thread is in the middle of something here.

        Its stack tells. An exception from a signal can come between any two steps, also before a
        flag is taken back, and nobody would close then.
        """
        frame = inspect.currentframe()
        while frame is not None:
            if frame.f_code in WORK and frame.f_locals.get("self") is self:
                return True
            frame = frame.f_back
        return False


def _seconds(max_interval: Any) -> float:
    if isinstance(max_interval, int | float):
        return max_interval
    raise ConfigurationError(
        f"beat_max_loop_interval={max_interval!r} is no number of seconds. Give a number, or leave "
        "it out: no pass is put off for longer than redlock_beat_retry."
    )


#: What `close` must not interrupt, only cut short.
WORK = frozenset(
    method.__code__
    for method in (
        RedlockScheduler.tick,
        RedlockScheduler._do_sync,
        RedlockScheduler._close_now,
    )
)
