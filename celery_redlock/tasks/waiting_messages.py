"""
The messages that wait in a worker until their delay is over, or until their keys are released.

A requeued message comes back to some worker, which keeps it until its ETA. A release publishes who
waits longest; the worker that has that message starts it then. Nothing depends on it: without any
wake-up every message starts at its ETA.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from celery import bootsteps, signals
from kombu.asynchronous.timer import to_timestamp

from celery_redlock._greenlets.threads import call_in_app, start_thread
from celery_redlock._greenlets.unpatched import native_lock
from celery_redlock._greenlets.wakeup import WakeupPipe
from celery_redlock._log import event_logger
from celery_redlock.core import Redlock
from celery_redlock.errors import RedlockError
from celery_redlock.protocol.keys import places_of, wake_channel
from celery_redlock.tasks.config.client import redlock_for
from celery_redlock.tasks.message.envelope import Envelope, waiter_name
from celery_redlock.transport import Listener

__all__ = ["WakeStep"]

logger = event_logger(__name__)

#: Seconds after its arrival before which a message is not started. Celery stores RETRY for the run
#: that requeued it only after it was published; a result of the next run would be overwritten.
SETTLING = 0.1

#: The same for a message whose task stores no result: its last run is leaving its process.
LEAVING = 0.02

#: Seconds for which a wake-up is remembered whose message is on its way to a worker.
EARLY = 5.0
MAX_EARLY = 10_000

#: Seconds for which a worker has to have listened to a key before a message of it arrives; after a
#: shorter time the release may have come before.
SURE_AFTER = 5.0

#: Seconds before its ETA from which on a message is left to Celery's timer.
AT_ETA = 0.05

#: Seconds between two looks for messages whose ETA is over.
PRUNED_EVERY = 10.0


@dataclass(frozen=True, slots=True)
class Held:
    """
    A message that waits for its ETA in this worker.

    Attributes:
        request: of the message.
        keys: for which it waits.
        channels: on which it is woken.
        since: since when it waits, in seconds since the epoch.
        starts_from: when it may start, on the monotonic clock: its last run has ended by then.
        until: its ETA, on the same clock.
    """

    request: Any
    keys: tuple[str, ...]
    channels: frozenset[str]
    since: float
    starts_from: float
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
        signals.task_received.connect(self._connect, sender=parent, weak=False)

    def register_with_event_loop(self, parent: Any, hub: Any) -> None:
        """Start messages in the worker's event loop."""
        self._followed(parent).use_hub(hub)

    def stop(self, parent: Any) -> None:
        """Start no more messages before their time: the worker gives them back."""
        signals.task_received.disconnect(self._connect, sender=parent)
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
        self._listening_lock = native_lock()
        self._held: dict[str, Held] = {}
        self._woken: list[str] = []
        # When those were woken whose message was not here.
        self._early: OrderedDict[str, float] = OrderedDict()
        self._hub: Any = None
        self._pipe: WakeupPipe | None = None
        self._listener: Listener | None = None
        # Since when a quorum of nodes publishes to us, by channel.
        self._live_since: dict[str, float] = {}
        # Messages whose keys may have been released before anybody listened.
        self._unsure: set[str] = set()
        self._is_looking = False
        self._is_pruned_later = False
        self._closed = False
        self.has_looked = False

    @property
    def names(self) -> list[str]:
        """The names of the messages, by which they are woken."""
        return list(self._held)

    @property
    def is_listening(self) -> bool:
        """Whether nodes publish to it, or will."""
        return self._listener is not None

    def use_hub(self, hub: Any) -> None:
        """Start messages in an event loop, which may be a new one."""
        if self._pipe is None:
            self._pipe = WakeupPipe()
        self._hub = hub
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
            now + (SETTLING if request.store_errors else LEAVING),
            to_timestamp(request.eta),
        )
        with self._lock:
            self._held[name] = held
            is_early = now - self._early.pop(name, -math.inf) < EARLY
        self._listen(held.channels)
        self._prune_later()
        with self._lock:
            since = [self._live_since.get(channel, now) for channel in held.channels]
        if is_early or any(now - at < SURE_AFTER for at in since):
            self._look([name])

    def close(self) -> None:
        """Start no more messages. Idempotent."""
        self._closed = True
        with self._listening_lock:
            self._stop_listening()
        if self._pipe is not None:
            self._hub.remove_reader(self._pipe.fd)
            self._pipe.close()
            self._pipe = None

    # Called in threads of the wake-ups.

    def on_wake(self, name: str) -> None:
        """Start a message soon: a node has woken it."""
        with self._lock:
            is_here = name in self._held
            if not is_here:
                self._note_early(name)
        if is_here:
            self._start_soon(name)

    def on_live(self) -> None:
        """Look what was missed: a quorum of nodes publishes to this worker by now."""
        self._note_live()
        call_in_app(self._look, self.names)

    def _note_early(self, name: str) -> None:
        """Remember that a message was woken which is not here; the caller has the lock."""
        self._early[name] = time.monotonic()
        if len(self._early) > MAX_EARLY:
            self._early.popitem(last=False)

    def _start_soon(self, name: str) -> None:
        if self._closed:
            return
        self._woken.append(name)
        pipe = self._pipe  # another thread may close it
        if pipe is not None:
            pipe.wake()
        else:
            call_in_app(self._consumer.timer.call_after, 0, self._start_woken)

    # Called where Celery calls its timers.

    def _on_pipe(self) -> None:
        if self._pipe is not None:
            self._pipe.drain()
        self._start_woken()

    def _start_woken(self) -> None:
        while self._woken and not self._closed:
            name = self._woken.pop(0)
            try:
                self._start(name)
            except Exception:  # an error of one message must not end the worker's event loop
                logger.exception(
                    "early-start-failed",
                    "The message %(message)s could not be started before its ETA",
                    message=name,
                )

    def _start(self, name: str) -> None:
        """Start a message as its timer would: rate limits and revocations count as ever."""
        with self._lock:
            held = None if self._closed else self._held.get(name)
            if held is None:
                return
            now = time.monotonic()
            left = held.starts_from - now
            if left <= 0:
                del self._held[name]
        if left > 0:
            self._consumer.timer.call_after(left, self._start, (name,))
            return
        entry = _timer_entry(self._consumer.timer, held.request)
        if entry is None or now > held.until - AT_ETA:
            with self._lock:
                self._note_early(name)  # it has begun, and may be on its way back
            return
        entry.cancel()
        call = getattr(entry, "entry", entry)
        fun, args, kwargs = call.fun, call.args, call.kwargs
        call.args = ()  # Celery shows what its timers are for as scheduled
        fun(*args, **kwargs)

    def _prune_later(self) -> None:
        if not self._is_pruned_later:
            self._is_pruned_later = True
            self._consumer.timer.call_after(PRUNED_EVERY, self.prune)

    def prune(self) -> None:
        """Forget messages whose ETA is over; listen no more when none is left."""
        now = time.monotonic()
        self._is_pruned_later = False
        with self._listening_lock:
            with self._lock:
                for name in [name for name, held in self._held.items() if held.until < now]:
                    del self._held[name]
                channels = frozenset().union(*(held.channels for held in self._held.values()))
                for channel in self._live_since.keys() - channels:
                    del self._live_since[channel]
            if self._listener is not None:
                self._listener.move(channels)
            if not channels:
                self._stop_listening()
        if channels and not self._closed:
            self._prune_later()

    # Listening.

    def _listen(self, channels: frozenset[str]) -> None:
        with self._listening_lock:
            listener = self._listener
            if listener is None:
                wake_ups = self._redlock.transport.wake_ups
                self._listener = Listener(wake_ups, channels, self.on_wake, self.on_live)
            elif not channels <= listener.channels:
                listener.move(listener.channels | channels)
            else:
                return
        self._note_live()

    def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        with self._lock:
            self._live_since.clear()

    def _note_live(self) -> None:
        listener, now = self._listener, time.monotonic()
        if listener is not None and listener.is_live:
            with self._lock:
                for channel in listener.channels:
                    self._live_since.setdefault(channel, now)

    @property
    def _redlock(self) -> Redlock:
        return redlock_for(self._consumer.app)

    def _look(self, names: Iterable[str]) -> None:
        """Ask the nodes whether keys of some messages are free already."""
        with self._lock:
            self._unsure.update(names)
            if self._is_looking or self._closed or not self._unsure:
                return
            self._is_looking = True
        with contextlib.suppress(RuntimeError):  # the process ends
            start_thread(self._ask_nodes, "redlock-waiting")
            return
        self._is_looking = False

    def _free(self, keys: tuple[str, ...]) -> int:
        """Return how many messages could have all these keys now."""
        places = list(map(places_of, keys))
        held = iter(self._redlock.reservations.inspect([place for of in places for place in of]))
        return min(sum(next(held) is None for _ in of_key) for of_key in places)

    def _ask_nodes(self) -> None:
        """Start the messages that have waited longest for keys that are free."""
        time.sleep(LEAVING)  # for those that arrive together
        if self._closed:
            return
        with self._lock:
            self._is_looking = False
            unsure = {self._held[name].keys for name in self._unsure if name in self._held}
            self._unsure.clear()
            oldest: dict[tuple[str, ...], list[str]] = {}
            for name, held in sorted(self._held.items(), key=lambda item: item[1].since):
                if held.keys in unsure:
                    oldest.setdefault(held.keys, []).append(name)
        try:
            for keys, names in oldest.items():
                for name in names[: self._free(keys)]:
                    self._start_soon(name)
            self.has_looked = True
        except RedlockError as error:
            logger.debug(
                "waiting-keys-unreadable",
                "The keys of waiting messages could not be looked at: %(error)s",
                error=error,
            )


def _timer_entry(timer: Any, request: Any) -> Any:
    """
    Return what starts a message at its ETA; None if it was cancelled.

    In a pool of greenlets it is a greenlet.
    """
    entry = getattr(request, "_eta_timer_entry", None)
    if entry is None:  # Celery before 5.7 does not keep it
        for scheduled in list(timer.schedule._queue):
            call = scheduled.entry
            if call.args and call.args[0] is request:
                entry = scheduled if hasattr(scheduled, "kill") else call
    is_cancelled = entry is None or entry.canceled or getattr(entry, "dead", False)
    return None if is_cancelled else entry
