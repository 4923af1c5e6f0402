"""
The messages that wait in a worker until their delay is over, or until their keys are released.

A requeued message comes back to some worker, which keeps it until its ETA. A release publishes who
waits longest; the worker that has that message starts it then. Nothing depends on it: without any
wake-up every message starts at its ETA.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from celery import bootsteps, signals
from celery.worker import state as worker_state
from kombu.asynchronous.timer import to_timestamp

from celery_redlock._greenlets.threads import call_in_app, start_thread
from celery_redlock._greenlets.unpatched import native_lock
from celery_redlock._greenlets.wakeup import WakeupPipe
from celery_redlock._log import event_logger
from celery_redlock.core import Redlock
from celery_redlock.core.node_poll import poll_nodes
from celery_redlock.core.reservations import FAIR_GRACE
from celery_redlock.errors import RedlockError
from celery_redlock.protocol import Granted, Refused, Waiter, milliseconds
from celery_redlock.protocol.keys import QUORUM, places_of, wake_channel
from celery_redlock.tasks.config.client import redlock_for
from celery_redlock.tasks.message.envelope import REMEMBERED_FOR, Envelope, waiter_name
from celery_redlock.transport import Listener

__all__ = ["WakeStep"]

logger = event_logger(__name__)

#: Seconds after its arrival before which a message is not started: its last run is leaving its
#: process.
SETTLING = 0.02

#: Seconds after a wake-up in which somebody has taken the key, or is gone. Longer than a node lets
#: others wait for one that was woken.
STALLED_AFTER = FAIR_GRACE + 0.1

#: Of the messages of one key, how many of those that are next enter their wait queues again then.
NEXT = 16

#: Seconds before its ETA from which on a message is left to Celery's timer.
AT_ETA = 0.05

#: Of many that start together, how many start before the worker does something else.
STARTED_AT_ONCE = 100

#: Seconds between two looks at keys for which nobody was woken: a holder that dies wakes nobody.
LOOKS_EVERY = 2.0

#: At the keys of how many messages it looks then; at the others the next time.
LOOKS_AT_ONCE = 200

#: Of how many messages the keys are in one inspection, so that it holds no node up.
INSPECTED_AT_ONCE = 50


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

    A node that has woken a message twice does not know any more that it waits. So each message that
    arrives enters its wait queues again, and its keys are looked at. The same is done when nodes
    begin to publish to this worker, a moment after each wake-up, whose message may be gone, and at
    intervals for holders that died. A message that this worker keeps is therefore in the wait
    queues of a quorum, or about to try.

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
        self._calls: deque[tuple[Callable[[str], None], str]] = deque()
        self._hub: Any = None
        self._pipe: WakeupPipe | None = None
        self._listener: Listener | None = None
        # Messages that nodes may have forgotten, or whose keys may be free.
        self._in_doubt: set[str] = set()
        # Channels of which the messages are looked at soon, because somebody was woken.
        self._rung: set[str] = set()
        self._is_looking = False
        self._is_ticking = False
        # The keys at which it has looked, the latest last.
        self._looked_at: dict[tuple[str, ...], None] = {}
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
            now + SETTLING,
            to_timestamp(request.eta),
        )
        with self._lock:
            self._held[name] = held
        self._listen(held.channels)
        self._look_at_intervals()
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

    def on_wake(self, name: str, channel: str) -> None:
        """Start a message soon: a node has woken it. Look later whether anybody came."""
        with self._lock:
            is_here = name in self._held
            is_first = bool(self._held) and not self._rung
            if self._held:
                self._rung.add(channel)
        if is_first:
            self._soon(self._look_later, channel)
        if is_here:
            self._soon(self._start, name)

    def on_live(self) -> None:
        """Look what was missed: a quorum of nodes publishes to this worker by now."""
        call_in_app(self._look, self.names)

    def _soon(self, call: Callable[[str], None], name: str) -> None:
        if self._closed:
            return
        self._calls.append((call, name))
        pipe = self._pipe  # another thread may close it
        if pipe is not None:
            pipe.wake()
        else:
            call_in_app(self._consumer.timer.call_after, 0, self._make_calls)

    # Called where Celery calls its timers.

    def _on_pipe(self) -> None:
        if self._pipe is not None:
            self._pipe.drain()
        self._make_calls()

    def _make_calls(self) -> None:
        for _ in range(min(len(self._calls), STARTED_AT_ONCE)):
            if self._closed:
                return
            call, name = self._calls.popleft()
            try:
                call(name)
            except Exception:  # an error of one message must not end the worker's event loop
                logger.exception(
                    "early-start-failed",
                    "The message %(message)s could not be started before its ETA",
                    message=name,
                )
        if self._calls:
            self._consumer.timer.call_after(0, self._make_calls)

    def _look_later(self, _: str) -> None:
        self._consumer.timer.call_after(STALLED_AFTER, self._look_after_wake_ups)

    def _look_after_wake_ups(self) -> None:
        """Look at the messages that are next for the keys of channels that have rung."""
        with self._lock:
            rung, self._rung = self._rung, set()
            by_keys = _by_keys(item for item in self._asleep() if rung & item[1].channels)
        self._look(name for names in by_keys.values() for name in names[:NEXT])

    def _start(self, name: str) -> None:
        """Start a message as its timer would: rate limits and revocations count as ever."""
        with self._lock:
            held = None if self._closed else self._held.get(name)
            if held is None:
                return
            now = time.monotonic()
            left = SETTLING if _is_under_way(held.request) else held.starts_from - now
            if left <= 0:
                del self._held[name]
        if left > 0:
            self._consumer.timer.call_after(left, self._start, (name,))
            return
        entry = _timer_entry(self._consumer.timer, held.request)
        if entry is None or now > held.until - AT_ETA:
            return
        entry.cancel()
        call = getattr(entry, "entry", entry)
        fun, args, kwargs = call.fun, call.args, call.kwargs
        call.args = ()  # Celery shows what its timers are for as scheduled
        fun(*args, **kwargs)

    def _look_at_intervals(self) -> None:
        if not self._is_ticking:
            self._is_ticking = True
            self._consumer.timer.call_after(LOOKS_EVERY, self._look_at_next)

    def _look_at_next(self) -> None:
        """Look at keys for which nobody was woken, in turn."""
        self._is_ticking = False
        self.prune()
        with self._lock:
            by_keys = _by_keys(self._asleep())
            is_left = bool(self._held) and not self._closed
        # At new keys first, and then again at those where it has not looked for longest.
        new = [keys for keys in by_keys if keys not in self._looked_at]
        earlier = [keys for keys in self._looked_at if keys in by_keys]
        due = dict.fromkeys([*new, *earlier][:LOOKS_AT_ONCE])
        self._looked_at = {keys: None for keys in earlier if keys not in due} | due
        self._look(name for keys in due for name in by_keys[keys][:NEXT])
        if is_left:
            self._look_at_intervals()

    def prune(self) -> None:
        """Forget messages whose ETA is over; listen no more when none is left."""
        now = time.monotonic()
        with self._listening_lock:
            with self._lock:
                for name in [name for name, held in self._held.items() if held.until < now]:
                    del self._held[name]
                channels = frozenset().union(*(held.channels for held in self._held.values()))
            if self._listener is not None:
                self._listener.move(channels)
            if not channels:
                self._stop_listening()

    # Listening.

    def _listen(self, channels: frozenset[str]) -> None:
        with self._listening_lock:
            listener = self._listener
            if listener is None:
                wake_ups = self._redlock.transport.wake_ups
                self._listener = Listener(wake_ups, channels, self.on_wake, self.on_live)
            elif not channels <= listener.channels:
                listener.move(listener.channels | channels)

    def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    @property
    def _redlock(self) -> Redlock:
        return redlock_for(self._consumer.app)

    def _look(self, names: Iterable[str]) -> None:
        """Enter messages in their wait queues again, and start those whose keys are free."""
        with self._lock:
            self._in_doubt.update(names)
            if self._is_looking or self._closed or not self._in_doubt:
                return
            self._is_looking = True
        with contextlib.suppress(RuntimeError):  # the process ends
            start_thread(self._ask_nodes, "redlock-waiting")
            return
        self._is_looking = False

    def _asleep(self) -> list[tuple[str, Held]]:
        """Return the messages that have not begun, the oldest first; the caller has the lock."""
        until = time.monotonic() + AT_ETA
        held = [item for item in self._held.items() if item[1].until > until]
        return sorted(held, key=lambda item: item[1].since)

    def _ask_nodes(self) -> None:
        time.sleep(SETTLING)  # for those that arrive together
        if self._closed:
            return
        with self._lock:
            self._is_looking = False
            asleep = self._asleep()
            doubted = {name: held for name, held in asleep if name in self._in_doubt}
            self._in_doubt.clear()
            unsure = {held.keys for held in doubted.values()}
            oldest = _by_keys(item for item in asleep if item[1].keys in unsure)
        waiters = [
            (key, Waiter(name, milliseconds(held.since), milliseconds(REMEMBERED_FOR)))
            for name, held in doubted.items()
            for key in held.keys
            if key != QUORUM
        ]
        try:
            for keys, free in self._free(list(oldest), waiters):
                for name in oldest[keys][:free]:
                    self._soon(self._start, name)
            self.has_looked = True
        except RedlockError as error:
            logger.debug(
                "waiting-keys-unreadable",
                "The keys of waiting messages could not be looked at: %(error)s",
                error=error,
            )

    def _free(
        self, asked: Sequence[tuple[str, ...]], waiters: Sequence[tuple[str, Waiter]]
    ) -> Iterator[tuple[tuple[str, ...], int]]:
        """
        Iterate over how many messages could have all keys of each tuple now.

        All that wait for a quorum could if it votes. Waiters enter their queues before that.
        """
        redlock = self._redlock
        if (QUORUM,) in asked:
            polled = poll_nodes(redlock.transport, redlock.settings)
            voted = sum(isinstance(vote, Granted | Refused) for vote in polled.votes)
            yield (QUORUM,), len(self._held) if voted >= polled.needed else 0
            asked = [keys for keys in asked if keys != (QUORUM,)]
        for at in range(0, len(asked), INSPECTED_AT_ONCE):
            places = {
                keys: list(map(places_of, keys)) for keys in asked[at : at + INSPECTED_AT_ONCE]
            }
            node_keys = [place for of in places.values() for slots in of for place in slots]
            held = iter(redlock.reservations.inspect(node_keys, waiters=waiters))
            for keys, of_keys in places.items():
                yield keys, min(sum(next(held) is None for _ in slots) for slots in of_keys)
            waiters = ()


def _by_keys(held: Iterable[tuple[str, Held]]) -> dict[tuple[str, ...], list[str]]:
    """Return the names of messages by the keys that they wait for."""
    by_keys: dict[tuple[str, ...], list[str]] = {}
    for name, message in held:
        by_keys.setdefault(message.keys, []).append(name)
    return by_keys


def _is_under_way(request: Any) -> bool:
    """Return whether this worker has a run of the same message, which has requeued it."""
    earlier = worker_state.requests.get(request.id)
    return earlier is not None and earlier is not request


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
