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

from celery_redlock.beat.candidate import Candidate
from celery_redlock.beat.inner_scheduler import cancel_exit_write, wrapped_class
from celery_redlock.beat.leader_scheduler import LeaderScheduler
from celery_redlock.beat.leadership import Leadership
from celery_redlock.beat.timing import read_timings
from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.config.client import redlock_for
from celery_redlock.tasks.config.settings import read_settings
from celery_redlock.tasks.ticks.entry_ticks import schedule_name
from celery_redlock.tasks.ticks.tick_stamping import stamped
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
    stamps_ticks = True

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
        stamped(self._wrapped, LeaderScheduler)  # raises now, not only once this beat leads
        self._name = schedule_name(app)
        self._options = {
            "schedule": schedule,
            "max_interval": max_interval,
            "Producer": Producer,
            "sync_every_tasks": sync_every_tasks,
            **kwargs,
        }
        self._candidate: Candidate | None = None
        self._leadership: Leadership | None = None
        self._close_requested = False
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
            closed = self._close_if_requested()
        if closed:
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
            closed = self._close_if_requested()
        if closed:
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
        self._close_requested = True
        if not self._is_busy():
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
        return None if self._leadership is None else self._leadership.inner

    def _pass(self) -> float:
        candidate = self._candidate or self._begin()
        leadership = self._leadership
        if leadership is None:
            lease = candidate.attempt()
            if lease is None:
                return candidate.pause
            leadership = self._leadership = Leadership(
                self, redlock_for(self.app), lease, self._name, self._timings, self._build
            )
            candidate.accept()
        delay = leadership.tick()
        if leadership.step_down is None:
            return min(delay, self.max_interval)
        leadership.close()
        self._leadership = None
        candidate.back_off(leadership.step_down.back_off)
        return candidate.pause

    def _begin(self) -> Candidate:
        self._candidate = Candidate(redlock_for(self.app), self._name, self._timings)
        return self._candidate

    def _build(self) -> Any:
        return self._wrapped(app=self.app, lazy=False, **self._options)

    def _close_if_requested(self) -> bool:
        closed = self._close_requested
        if closed:
            self._close_now()
        return closed

    def _close_now(self) -> None:
        if self._leadership is not None:
            self._leadership.close()
            self._leadership = None
        if self._candidate is not None:
            self._candidate.abandon()
            self._candidate = None
        self._close_requested = False

    def _is_busy(self) -> bool:
        """
        Tell whether this thread is in the middle of something here.

        Its stack tells. An exception from a signal can come between any two steps, also before a
        flag is taken back, and nobody would close then.
        """
        frame = inspect.currentframe()
        while frame is not None:
            if frame.f_code in BUSY_CODE and frame.f_locals.get("self") is self:
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
BUSY_CODE = frozenset(
    method.__code__
    for method in (
        RedlockScheduler.tick,
        RedlockScheduler._do_sync,
        RedlockScheduler._close_now,
    )
)
