"""
The messages that wait in a worker until their delay is over, or until their keys are released.

A requeued message comes back to some worker, which keeps it until its ETA. A release publishes who
waits longest; the worker that has that message starts it then. Nothing depends on it: without any
wake-up every message starts at its ETA.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from celery import bootsteps, signals
from kombu.asynchronous.timer import to_timestamp

from celery_redlock._greenlets.threads import call_in_app, start_thread
from celery_redlock._greenlets.unpatched import native_lock
from celery_redlock._greenlets.wakeup import WakeupPipe
from celery_redlock.core import Redlock
from celery_redlock.errors import RedlockError
from celery_redlock.protocol.keys import wake_channel
from celery_redlock.tasks.config.client import redlock_for
from celery_redlock.tasks.message.envelope import Envelope, waiter_name
from celery_redlock.transport import Listener

__all__ = ["WakeStep"]

logger = logging.getLogger(__name__)

#: Seconds after its arrival before which a message is not started. Celery stores RETRY for the run
#: that requeued it only after it was published; a result of the next run would be overwritten.
SETTLING = 0.1

#: Seconds in which wake-ups of one message count once: every node publishes each release.
SAME_RELEASE = 0.05

#: Seconds for which a wake-up is remembered whose message is still on its way to a worker.
EARLY = 5.0
MAX_EARLY = 10_000

#: Seconds for which a worker has to have listened to a key before a message of it arrives; after a
#: shorter time the release may have come before.
SURE_AFTER = 5.0

#: Seconds before its ETA from which on a message is left to Celery's timer.
AT_ETA = 0.05

#: From so many messages on, those whose time has come are forgotten now and then.
PRUNED_FROM = 1000


@dataclass(frozen=True, slots=True)
class Held:
    """
    A message that waits for its ETA in this worker.

    Attributes:
        request: of the message.
        keys: for which it waits.
        channels: on which it is woken.
        since: since when it waits, in seconds since the epoch.
        arrived: when it got here, on the monotonic clock.
        until: its ETA, on the same clock.
    """

    request: Any
    keys: tuple[str, ...]
    channels: frozenset[str]
    since: float
    arrived: float
    until: float


class WakeStep(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery is untyped
    """Starts a waiting message when its key is released."""

    name = "celery-redlock-waiting"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **_: Any) -> None:
        self._waiting: WaitingMessages | None = None
        self._connect = self._received

    def start(self, parent: Any) -> None:
        """Follow the messages that arrive from now on."""
        signals.task_received.connect(self._connect, weak=False, dispatch_uid=_uid(parent))

    def register_with_event_loop(self, parent: Any, hub: Any) -> None:
        """Start messages in the worker's event loop."""
        self._followed(parent).use_hub(hub)

    def stop(self, parent: Any) -> None:
        """Start no more messages before their time: the worker gives them back."""
        signals.task_received.disconnect(dispatch_uid=_uid(parent))
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None

    shutdown = terminate = stop

    def _received(self, sender: Any = None, request: Any = None, **_: Any) -> None:
        if request is not None and request.eta:
            envelope = Envelope.read(request.request_dict)
            if envelope.waits_for:
                self._followed(sender).add(request, envelope)

    def _followed(self, parent: Any) -> WaitingMessages:
        if self._waiting is None:
            self._waiting = WaitingMessages(parent)
        return self._waiting


def _uid(parent: Any) -> str:
    return f"celery_redlock.task_received.{id(parent)}"


class WaitingMessages:
    """
    The waiting messages of one worker, and who is woken.

    Args:
        consumer: Celery's consumer.

    Attributes:
        has_looked: it has asked the nodes for keys that are free already.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._lock = native_lock()
        self._held: dict[str, Held] = {}
        self._woken: list[str] = []
        # When each waiter was last woken; and when those were whose message was not here.
        self._woken_at: OrderedDict[str, float] = OrderedDict()
        self._early: OrderedDict[str, float] = OrderedDict()
        self._pipe: WakeupPipe | None = None
        self._listener: Listener | None = None
        self._live_since: dict[str, float] = {}
        self._looking = False
        self._closed = False
        self._pruned_to = 0
        self.has_looked = False

    @property
    def names(self) -> list[str]:
        """The names of the messages, by which they are woken."""
        return list(self._held)

    def use_hub(self, hub: Any) -> None:
        """Start messages in an event loop, which may be a new one."""
        if self._pipe is None:
            self._pipe = WakeupPipe()
        hub.add_reader(self._pipe.fd, self._on_pipe)

    def add(self, request: Any, envelope: Envelope) -> None:
        """Take note of a message that Celery is about to keep until its ETA."""
        name, now = waiter_name(request.id), time.monotonic()
        history = envelope.wait_history
        held = Held(
            request,
            envelope.waits_for,
            frozenset(map(wake_channel, envelope.waits_for)),
            0.0 if history is None else history.first_seen,
            now,
            to_timestamp(request.eta),
        )
        with self._lock:
            if len(self._held) >= self._pruned_to + PRUNED_FROM:
                self._prune(now)
            self._held[name] = held
            is_early = now - self._early.pop(name, -math.inf) < EARLY
        self._listen(held.channels)
        if is_early:
            self._start_later(name)
        else:
            self._look_if_unsure(held, now)

    def close(self) -> None:
        """Start no more messages."""
        self._closed = True
        if self._listener is not None:
            self._listener.close()
        if self._pipe is not None:
            self._pipe.close()

    # Called in threads of the wake-ups.

    def on_wake(self, name: str) -> None:
        """Start a message soon: a node has woken it."""
        now = time.monotonic()
        with self._lock:
            before = self._woken_at.pop(name, None)
            if before is not None and now - before < SAME_RELEASE:
                self._woken_at[name] = before
                return
            self._woken_at[name] = now
            if name not in self._held:
                self._early[name] = now
            for remembered in (self._woken_at, self._early):
                if len(remembered) > MAX_EARLY:
                    remembered.popitem(last=False)
            if name in self._early:
                return
        self._start_later(name)

    def on_live(self) -> None:
        """Look what was missed: a quorum of nodes publishes to this worker by now."""
        now = time.monotonic()
        listener = self._listener
        with self._lock:
            for channel in listener.channels if listener is not None else ():
                self._live_since.setdefault(channel, now)
        call_in_app(self._look)

    def _start_later(self, name: str) -> None:
        if self._closed:
            return
        self._woken.append(name)
        if self._pipe is not None:
            self._pipe.wake()
        else:
            call_in_app(self._consumer.timer.call_after, 0, self._start_woken)

    # Called where Celery calls its timers.

    def _on_pipe(self) -> None:
        if self._pipe is not None:
            self._pipe.drain()
        self._start_woken()

    def _start_woken(self) -> None:
        while self._woken and not self._closed:
            self._start(self._woken.pop(0))

    def _start(self, name: str) -> None:
        """Start a message as its timer would: rate limits and revocations count as ever."""
        with self._lock:
            held = self._held.get(name)
            if held is None:
                return
            left = held.arrived + SETTLING - time.monotonic()
            if left <= 0:
                del self._held[name]
        if left > 0:
            self._consumer.timer.call_after(left, self._start, (name,))
            return
        if time.monotonic() > held.until - AT_ETA:
            return
        entry = _timer_entry(self._consumer.timer, held.request)
        if entry is not None and not entry.canceled:
            entry.cancel()
            call = getattr(entry, "entry", entry)
            call.fun(*call.args, **call.kwargs)

    # Listening.

    def _listen(self, channels: frozenset[str]) -> None:
        listener = self._listener
        if listener is None:
            wake_ups = self._redlock.transport.wake_ups
            self._listener = Listener(wake_ups, channels, self.on_wake, self.on_live)
        elif not channels <= listener.channels:
            listener.move(listener.channels | channels)

    @property
    def _redlock(self) -> Redlock:
        return redlock_for(self._consumer.app)

    def _look_if_unsure(self, held: Held, now: float) -> None:
        """Ask the nodes if a message's keys may have been released before anybody listened."""
        with self._lock:
            since = [self._live_since.get(channel) for channel in held.channels]
        if any(at is None or now - at < SURE_AFTER for at in since):
            self._look()

    def _look(self) -> None:
        with self._lock:
            if self._looking or self._closed:
                return
            self._looking = True
        with contextlib.suppress(RuntimeError):  # the process ends
            start_thread(self._ask_nodes, "redlock-waiting")
            return
        self._looking = False

    def _ask_nodes(self) -> None:
        """Start the message of each free key that has waited longest."""
        time.sleep(SETTLING)
        with self._lock:
            self._looking = False
            oldest: dict[tuple[str, ...], str] = {}
            for name, held in sorted(self._held.items(), key=lambda item: item[1].since):
                oldest.setdefault(held.keys, name)
        try:
            for keys, name in oldest.items():
                if not any(self._redlock.reservations.inspect(keys)):
                    self._start_later(name)
            self.has_looked = True
        except RedlockError as error:
            logger.debug("The keys of waiting messages could not be looked at: %s", error)

    def _prune(self, now: float) -> None:
        """Forget the messages whose ETA is over."""
        self._held = {name: held for name, held in self._held.items() if held.until > now}
        self._pruned_to = len(self._held)


def _timer_entry(timer: Any, request: Any) -> Any:
    """Return what starts a message at its ETA; in a pool of greenlets it is a greenlet."""
    known = getattr(request, "_eta_timer_entry", None)
    if known is not None:
        return known
    # Celery before 5.7 does not keep it.
    for scheduled in timer.queue:
        entry = scheduled.entry
        if entry.args and entry.args[0] is request:
            return scheduled if hasattr(scheduled, "kill") else entry
    return None
