"""
The scheduler class for `celery beat`, and how a signal closes it.
"""

from __future__ import annotations

import inspect
import signal
import threading
from collections.abc import Collection, Mapping
from functools import partial
from types import CodeType, MappingProxyType
from typing import Any

from celery import Celery, signals
from celery.beat import Scheduler
from celery.utils.imports import qualname

from celery_redlock.beat.candidate import Candidate
from celery_redlock.beat.inner_scheduler import cancel_exit_write, wrapped_class
from celery_redlock.beat.leader_lease import read_timings
from celery_redlock.beat.leader_scheduler import LeaderScheduler
from celery_redlock.beat.leadership import Leadership
from celery_redlock.core import VersionedValue
from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.config.client import client_for
from celery_redlock.tasks.config.settings import check_settings, read_settings
from celery_redlock.tasks.declarations import find_mistakes
from celery_redlock.tasks.hooks import check_nodes_of_beat
from celery_redlock.tasks.ticks.entry_ticks import schedule_name
from celery_redlock.tasks.ticks.tick_stamping import stamped
from celery_redlock.transport import parse_nodes

NO_ENTRIES: Mapping[str, Any] = MappingProxyType({})


class RedlockScheduler(Scheduler):  # type: ignore[misc]  # Celery is untyped
    """
    A beat that fails over: of any number of beats with this scheduler one leads and sends.

    Guarantee: once a leader has recorded a tick, no later leader sends it again, whatever the
    wrapped scheduler remembers. Another candidate leads within one lease after the leader crashed,
    and within one retry period after a signal stopped the leader, which first ends and records the
    send that it has begun. Limit: the broker does not check fencing tokens. A leader that is frozen
    while it sends may send that one message late, the tick of a leader that dies between sending
    and recording is sent twice, and a tick that the broker does not confirm in time is sent again,
    though it may have arrived. The workers drop further messages if the task locks (or with
    `redlock_dedupe`); a task that does not use this package runs for each.

    It never fails because of a lock. An exception of the wrapped scheduler ends the beat, as it
    would end a plain beat.

    Use it with `celery -A proj beat -S redlock`, or `beat_scheduler = "redlock"`. It wraps a
    scheduler with the entries of an ordinary beat, or the one that `redlock_beat_scheduler` names.
    """

    #: The wrapped scheduler stamps its ticks itself.
    stamps_ticks = True

    def __init__(
        self,
        app: Celery,
        schedule: Any = None,
        max_interval: float | None = None,
        Producer: Any = None,  # noqa: N803 - as in Celery
        lazy: bool = False,
        sync_every_tasks: int | None = None,
        **kwargs: Any,
    ) -> None:
        settings, _ = check_settings(app)
        mistakes, _ = find_mistakes(app, with_nodes=False, locks=True)
        with mistakes.collected():
            self._timings = read_timings(settings)
        with mistakes.collected():
            self._wrapped = wrapped_class(settings.beat_scheduler, RedlockScheduler)
            stamped(self._wrapped, LeaderScheduler)  # raises now, not only once this beat leads
        with mistakes.collected():
            longest = _seconds(
                max_interval or app.conf.beat_max_loop_interval or Scheduler.max_interval
            )
        if mistakes:
            raise mistakes.all_in_one()
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
        self._remembered: Mapping[str, VersionedValue] = {}
        self._close_requested = False
        # Nothing is opened here, lazy or not: only a leader opens anything.
        super().__init__(app, lazy=True, **self._options)
        self.max_interval: float = min(longest, self._timings.retry)

    @property
    def schedule(self) -> Any:
        """The entries of the wrapped scheduler; empty and read-only in a candidate."""
        inner = self._inner
        return NO_ENTRIES if inner is None else inner.schedule

    def tick(self, *_: Any, **__: Any) -> float:
        """
        Make one pass; return the seconds until the next, at most a retry period.

        Raises:
            SystemExit: a signal ended the beat during this pass.
        """
        try:
            delay = self._pass()
        finally:
            closed = self._close_if_requested()
        if closed:
            # The handler's own SystemExit may be lost: Python only prints an exception that is
            # raised in a __del__, and the beat would lead again.
            raise SystemExit
        return delay

    def should_sync(self) -> bool:
        """Return whether the wrapped scheduler wants to write what it remembers."""
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
        Hand over to another beat: at once or, during a pass, as soon as the pass has ended.

        Idempotent. Celery calls this from its SIGTERM handler, between any two steps, and then ends
        the pass with `SystemExit`. Closing during the pass could wait for a lock that this very
        thread holds.
        """
        self._close_requested = True
        if not _is_inside(self, BUSY_CODE):
            self._close_now()

    def close_after_send(self) -> bool:
        """
        Close when this thread's current send ends; return whether it is sending.

        A signal handler that gets True raises nothing: the pass raises `SystemExit` once it has
        closed. A tick whose send is cut short may have been sent, and the next leader would send it
        again. A second call returns False, so that a second signal ends a send that hangs.
        """
        if self._close_requested or not _is_inside(self._inner, SEND_CODE):
            return False
        self._close_requested = True
        return True

    @property
    def info(self) -> str:
        """The lines that Celery's banner shows."""
        settings, timings = read_settings(self.app), self._timings
        nodes = ", ".join(node.name for node in parse_nodes(settings.nodes))
        inner = self._wrapped(app=self.app, lazy=True, **self._options)
        cancel_exit_write(inner)
        lines = [
            f"    . lock nodes -> {nodes}",
            f"    . schedule -> {self._name}",
            f"    . lease -> {timings.ttl:.3g}s, extended within {timings.renew_deadline:.3g}s, "
            f"tried every {timings.retry:.3g}s",
            f"    . wraps -> {qualname(self._wrapped)}",
            inner.info,
        ]
        return "\n".join(line for line in lines if line)

    @property
    def _inner(self) -> Any:
        return None if self._leadership is None else self._leadership.inner

    def _pass(self) -> float:
        candidate = self._candidate
        if candidate is None:
            candidate = self._candidate = Candidate(client_for(self.app), self._name, self._timings)
        leadership = self._leadership
        if leadership is None:
            lease = candidate.attempt()
            if lease is None:
                return candidate.pause
            leadership = self._leadership = Leadership(
                self,
                client_for(self.app),
                lease,
                self._name,
                self._timings,
                self._build,
                self._remembered,
            )
            candidate.accept()
        delay = leadership.tick()
        if leadership.ended is None:
            return min(delay, self.max_interval)
        leadership.close()
        self._remembered = leadership.records
        self._leadership = None
        candidate.back_off(leadership.back_off, has_led=leadership.has_led)
        return candidate.pause

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


def _is_inside(owner: Any, methods: Collection[CodeType]) -> bool:
    """
    Return whether this thread is inside one of these methods of an object.

    It reads the stack, not a flag: a signal's exception can come between any two steps, even before
    a flag is cleared, and then nothing would ever close.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code in methods and frame.f_locals.get("self") is owner:
            return True
        frame = frame.f_back
    return False


def _seconds(max_interval: Any) -> float:
    if isinstance(max_interval, int | float):
        return max_interval
    raise ConfigurationError(
        f"beat_max_loop_interval={max_interval!r} is not a number of seconds. Give a number, or "
        "omit it: the pause between two passes is at most redlock_beat_retry."
    )


#: The methods that `close` must not interrupt; it takes effect when they end.
BUSY_CODE = frozenset(
    method.__code__
    for method in (
        RedlockScheduler.tick,
        RedlockScheduler._do_sync,
        RedlockScheduler._close_now,
    )
)

#: The method in which a tick is sent and recorded; a signal ends the beat after it.
SEND_CODE = frozenset({LeaderScheduler.apply_async.__code__})


def close_on_signals(sender: Any, **_: Any) -> None:
    """
    Make SIGTERM and SIGINT close a beat's scheduler, once a send that has begun has ended.

    In a process of its own, Celery's handler closes a beat's scheduler and then raises
    `SystemExit`, wherever the pass is. Inside a worker (`celery worker -B`) it only raises, and
    Python prints and forgets an exception raised in a `__del__`: the beat would continue, and the
    worker would wait for it. The previous handler is still called, except for a signal that comes
    during a send.
    """
    is_ours = isinstance(sender.scheduler, RedlockScheduler)
    if not is_ours or threading.current_thread() is not threading.main_thread():
        return  # a beat in a worker's thread gets no signals
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)
        if before is not signal.SIG_IGN:
            signal.signal(number, partial(_close, sender, before))


def _close(service: Any, before: Any, number: int, frame: Any) -> None:
    if service.scheduler.close_after_send():
        return
    service.sync()
    if callable(before):
        before(number, frame)
    raise SystemExit


def check_nodes(sender: Any, **_: Any) -> None:
    """End a starting beat with this scheduler if its lock nodes can never serve."""
    if isinstance(sender.scheduler, RedlockScheduler):
        check_nodes_of_beat(sender.app)


signals.beat_init.connect(check_nodes, weak=False, dispatch_uid="celery_redlock.beat.check_nodes")
signals.beat_init.connect(
    close_on_signals, weak=False, dispatch_uid="celery_redlock.beat.close_on_signals"
)
