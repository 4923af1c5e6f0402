"""
The messages that wait in a worker until their delay is over, or until their keys are released.

A requeued message comes back to some worker, which keeps it until its ETA. A release publishes the
names of the messages that come first, by priority and then by how long they have waited, and a
worker that has one of them starts it at once.
A lost wake-up only costs time: every message starts at its ETA at the latest.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from operator import mul
from typing import Any
from weakref import ref

from celery import bootsteps, signals
from celery.worker import state as worker_state
from kombu.asynchronous.timer import to_timestamp

from celery_redlock._greenlets.polling import WakeupPipe
from celery_redlock._greenlets.threads import call_in_app, start_thread
from celery_redlock._greenlets.unpatched import native_lock
from celery_redlock._log import event_logger
from celery_redlock.core import Client
from celery_redlock.core.client import FAIR_GRACE
from celery_redlock.core.node_admin import poll_nodes
from celery_redlock.errors import RedlockError
from celery_redlock.protocol.commands import Waiter
from celery_redlock.protocol.keys import PAUSE_PREFIX, QUORUM, places_in_header, wake_channel
from celery_redlock.protocol.votes import Granted, Refused
from celery_redlock.tasks.border import ReceivedRequest, drop_cancelled, is_revoked, timer_entry
from celery_redlock.tasks.busy_worker import BusyWorker
from celery_redlock.tasks.config.client import client_for
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.transport import Listener

logger = event_logger(__name__)

#: Seconds for which an arrived message is not started, because its last run is leaving its process.
SETTLING = 0.02

#: Seconds after a wake-up until its waiter has taken the key or counts as gone. Longer than a node
#: lets others wait for a waiter that was woken.
STALLED_AFTER = FAIR_GRACE + 0.1

#: How many messages of one set of keys, the first in order, enter their wait queues at a look.
NEXT = 16

#: A message this many seconds before its ETA, or fewer, is left to Celery's timer.
AT_ETA = 0.05

#: How many messages start together before the worker's event loop does something else.
STARTED_AT_ONCE = 100

#: Seconds between two looks at keys without a wake-up: a holder that dies wakes no waiter.
LOOKS_EVERY = 2.0

#: How many sets of keys one such look covers at least; the next look covers others.
LOOKS_AT_ONCE = 200

#: Seconds within which the looks cover all sets of keys.
LOOKS_WITHIN = 30.0

#: Seconds after which a message tries by itself although its keys do not look free: a limit may
#: have been raised, the holder may have become a finished call, or no quorum may reply.
TRIES_AFTER = 30.0

#: How many messages do so at one look, those that have been kept longest.
TRIES_AT_ONCE = 8

#: How many keys and slots are inspected in one command, so that it does not hold up a node.
INSPECTED_AT_ONCE = 200


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """
    A message that waits for its ETA in this worker.

    Attributes:
        request: the message's request.
        keys: the keys that it waits for.
        channels: the channels on which it is woken.
        waiter: as which the nodes know it.
        starts_from: earliest start, on the monotonic clock: by then the run that requeued it has
            stored RETRY.
        until: its ETA, on the same clock.
        earlier: the message with its id that this worker had when it came, if any.
    """

    request: ReceivedRequest
    keys: tuple[str, ...]
    channels: frozenset[str]
    waiter: Waiter
    starts_from: float
    until: float
    earlier: ref[ReceivedRequest] | None

    @property
    def earlier_is_under_way(self) -> bool:
        """Whether this worker still has the earlier run that requeued the message."""
        # Of two messages with one id, those that only wait are none.
        earlier = self.earlier and self.earlier()
        under_way = worker_state.reserved_requests, worker_state.active_requests
        return earlier is not None and any(earlier in requests for requests in under_way)

    @property
    def tries(self) -> bool:
        """Whether an attempt may succeed although its keys do not look free."""
        return not any(key.startswith(PAUSE_PREFIX) for key in self.keys)


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
        """Start no more messages early: the worker returns them to the broker."""
        signals.task_received.disconnect(self._connect, sender=parent)
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None

    shutdown = terminate = stop

    def _received(
        self, sender: Any = None, request: ReceivedRequest | None = None, **_: Any
    ) -> None:
        if request is not None and request.eta:
            envelope = Envelope.read(request.request_dict)
            history, retries = envelope.wait_history, request.request_dict.get("retries") or 0
            # A retry that is sent before its body, or by Celery for a lost worker, has the header
            # of the run before it, and an ETA of its own.
            if envelope.waits_for and history is not None and history.retries == retries:
                self._followed(sender).add(request, envelope)

    def _followed(self, parent: Any) -> WaitingMessages:
        if self._waiting is None:
            self._waiting = WaitingMessages(parent)
        return self._waiting


class WaitingMessages:
    """
    The waiting messages of one worker, which it starts when nodes wake them.

    A node that has woken a message twice forgets that it waits. So each message that arrives enters
    its wait queues again, and this worker looks whether its keys are free. It repeats both when
    nodes begin to publish to it, a moment after each wake-up, because the woken message may be
    gone, and at intervals, because holders may have died. A message that this worker keeps is
    therefore in the wait queues of a quorum, or about to try.

    Args:
        consumer: Celery's consumer.

    Attributes:
        has_looked: whether it has asked the nodes which keys are free already.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._busy_worker = BusyWorker(consumer)
        self._lock = native_lock()
        self._listening_lock = native_lock()
        # In the order in which they came.
        self._held: dict[Held, None] = {}
        self._by_keys: dict[tuple[str, ...], dict[Held, None]] = {}
        # A wake-up starts one of several messages with one id; a look finds the others.
        self._by_name: dict[str, Held] = {}
        # Each with the name that is logged if it fails.
        self._calls: deque[tuple[Callable[[], None], str]] = deque()
        self._hub: Any = None
        self._pipe: WakeupPipe | None = None
        self._listener: Listener | None = None
        # Messages for which a timer repeats the start.
        self._put_off: set[Held] = set()
        # Messages that nodes may have forgotten, or whose keys may be free.
        self._in_doubt: set[Held] = set()
        # Channels with a wake-up a moment ago; the keys of their messages are looked at soon.
        self._rung: set[str] = set()
        self._is_looking = False
        self._is_ticking = False
        # The sets of keys in the order in which it looks at them.
        self._in_turn: dict[tuple[str, ...], None] = {}
        self._closed = False
        self.has_looked = False

    @property
    def is_listening(self) -> bool:
        """Whether nodes publish wake-ups to this worker, or will."""
        return self._listener is not None

    def use_hub(self, hub: Any) -> None:
        """Start messages in an event loop, which may be a new one."""
        if self._pipe is None:
            self._pipe = WakeupPipe()
        self._hub = hub
        hub.add_reader(self._pipe.fd, self._on_pipe)

    def add(self, request: ReceivedRequest, envelope: Envelope) -> None:
        """Take note of a message that Celery is about to keep until its ETA."""
        waiter = envelope.waiter(self._consumer.app, request)
        now = time.monotonic()
        held = Held(
            request,
            envelope.waits_for,
            frozenset(map(wake_channel, envelope.waits_for)),
            waiter,
            now + SETTLING,
            to_timestamp(request.eta),
            ref(earlier) if (earlier := worker_state.requests.get(request.id)) else None,
        )
        with self._lock:
            first = self._by_name.get(waiter.name)
            if first is not None and first.until <= now:
                self._forget(first)
            self._by_name.setdefault(waiter.name, held)
            self._held[held] = None
            self._by_keys.setdefault(held.keys, {})[held] = None
        self._listen(held.channels)
        self._look_at_intervals()
        if envelope.returns:  # another worker had no process for it
            self._consumer.timer.call_after(SETTLING, self._start, (held,))
        else:
            self._look([held])

    def close(self) -> None:
        """Start no more messages. Idempotent."""
        self._closed = True
        with self._listening_lock:
            self._stop_listening()
        self._busy_worker.disconnect()
        if self._pipe is not None:
            self._hub.remove_reader(self._pipe.fd)
            self._pipe.close()
            self._pipe = None

    # Called in threads of the wake-ups.

    def on_wake(self, name: str, channel: str) -> None:
        """Start a message that a node has woken; later look at the channel's keys again."""
        with self._lock:
            held = self._by_name.get(name)
            is_first = bool(self._held) and not self._rung
            if self._held:
                self._rung.add(channel)
        if is_first:
            self._soon(self._look_later, channel)
        if held is not None:
            self._start_soon(held)

    def on_live(self) -> None:
        """Look for missed wake-ups, now that a quorum of nodes publishes to this worker."""
        call_in_app(self._look_at, self._by_keys)

    def _start_soon(self, held: Held) -> None:
        self._soon(partial(self._start, held), held.waiter.name)

    def _soon(self, call: Callable[[], None], name: str) -> None:
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
                call()
            except Exception:  # an error of one message must not end the worker's event loop
                logger.exception(
                    "early-start-failed",
                    "The message %(message)s could not be started before its ETA",
                    message=name,
                )
        if self._calls:
            self._consumer.timer.call_after(0, self._make_calls)

    def _look_later(self) -> None:
        self._consumer.timer.call_after(STALLED_AFTER, self._look_after_wake_ups)

    def _look_after_wake_ups(self) -> None:
        """Look at the keys of channels with a wake-up, and at their first messages."""
        with self._lock:
            rung, self._rung = self._rung, set()
            woken = {held.keys for held in self._held if rung & held.channels}
        self._look_at(woken)

    def _start(self, held: Held) -> None:
        """Start a message as its timer would: Celery's rate limits and revocations still apply."""
        with self._lock:
            if self._closed or held not in self._held:
                return
            now = time.monotonic()
            left = SETTLING if held.earlier_is_under_way else held.starts_from - now
            if left <= 0:
                self._forget(held)
        if left > 0:
            if held not in self._put_off:  # or each look would add a timer that repeats itself
                self._put_off.add(held)
                self._consumer.timer.call_after(left, self._start_put_off, (held,))
            return
        entry = timer_entry(self._consumer.timer, held.request)
        if entry is None or now > held.until - AT_ETA:
            return
        entry.cancel()
        call = getattr(entry, "entry", entry)
        fun, args, kwargs = call.fun, call.args, call.kwargs
        call.args = ()  # or Celery would still list the message as scheduled
        if not self._busy_worker.returns(held.request):
            fun(*args, **kwargs)

    def _start_put_off(self, held: Held) -> None:
        self._put_off.discard(held)
        self._start(held)

    def _look_at_intervals(self) -> None:
        if not self._is_ticking:
            self._is_ticking = True
            self._consumer.timer.call_after(LOOKS_EVERY, self._look_at_next)

    def _look_at_next(self) -> None:
        """Look at keys in turn, whether they had a wake-up or not."""
        self._is_ticking = False
        self.prune()
        if self._held and not self._closed:
            self._look_at_intervals()
        if self._hub is not None:
            drop_cancelled(self._consumer.timer)
        now = time.monotonic()
        with self._lock:
            # Celery ends a message that is revoked when it starts.
            due = [held for held in self._held if is_revoked(held.request)]
            if self._busy_worker.is_busy:
                # At its ETA, it would begin to wait for a process, and no release would wake it.
                next_look = now + LOOKS_EVERY + AT_ETA
                due += [held for held in self._held if held.until < next_look]
            earliest = now - TRIES_AFTER
            longest = [held for held in self._held if held.starts_from < earliest and held.tries]
            due += longest[:TRIES_AT_ONCE]
            earlier = [keys for keys in self._in_turn if keys in self._by_keys]
            in_turn = list(dict.fromkeys([*earlier, *self._by_keys]))
        for held in due:
            self._start_soon(held)
        at_once = max(LOOKS_AT_ONCE, math.ceil(len(in_turn) * LOOKS_EVERY / LOOKS_WITHIN))
        self._in_turn = dict.fromkeys(in_turn[at_once:] + in_turn[:at_once])
        self._look_at(in_turn[:at_once])

    def prune(self) -> None:
        """Forget messages whose ETA has passed; stop listening when none is left."""
        now = time.monotonic()
        with self._listening_lock:
            with self._lock:
                for held in [held for held in self._held if held.until < now]:
                    self._forget(held)
                channels = frozenset().union(*(held.channels for held in self._held))
            if self._listener is not None:
                self._listener.move(channels)
            if not channels:
                self._stop_listening()

    # Listening.

    def _listen(self, channels: frozenset[str]) -> None:
        with self._listening_lock:
            listener = self._listener
            if listener is None:
                wake_ups = self._client.transport.wake_ups
                self._listener = Listener(wake_ups, channels, self.on_wake, self.on_live)
            elif not channels <= listener.channels:
                listener.move(listener.channels | channels)

    def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    @property
    def _client(self) -> Client:
        return client_for(self._consumer.app)

    def _look_at(self, sets_of_keys: Iterable[tuple[str, ...]]) -> None:
        """Look at sets of keys, and at the first messages of each."""
        with self._lock:
            first = [held for keys in sets_of_keys for held in self._first(keys, NEXT)]
        self._look(first)

    def _look(self, messages: Iterable[Held]) -> None:
        """Enter messages in their wait queues again, and start those whose keys are free."""
        with self._lock:
            self._in_doubt.update(messages)
            if self._is_looking or self._closed or not self._in_doubt:
                return
            self._is_looking = True
        with contextlib.suppress(RuntimeError):  # the process ends
            start_thread(self._ask_nodes, "redlock-waiting")
            return
        self._is_looking = False

    def _forget(self, held: Held) -> None:
        del self._held[held], self._by_keys[held.keys][held]
        if not self._by_keys[held.keys]:
            del self._by_keys[held.keys]
        if self._by_name.get(held.waiter.name) is held:
            del self._by_name[held.waiter.name]

    def _first(self, keys: tuple[str, ...], count: int) -> list[Held]:
        """Return the messages that come first of those that may start; the caller has the lock."""
        asleep = filter(_is_asleep, self._by_keys.get(keys, ()))
        return nsmallest(count, asleep, key=lambda held: held.waiter.score)

    def _ask_nodes(self) -> None:
        time.sleep(SETTLING)  # messages that arrive together share one look
        if self._closed:
            return
        with self._lock:
            self._is_looking = False
            in_doubt, self._in_doubt = self._in_doubt, set()
            held = [message for message in in_doubt if message in self._held]
        doubted: dict[tuple[str, ...], list[Held]] = {}
        for message in filter(_is_asleep, held):
            doubted.setdefault(message.keys, []).append(message)
        for batch in _batches(doubted):
            try:
                for keys, free in self._free(batch):
                    with self._lock:
                        first = self._first(keys, free)
                    for message in first:
                        self._start_soon(message)
            except RedlockError as error:
                logger.debug(
                    "waiting-keys-unreadable",
                    "The keys of waiting messages could not be checked: %(error)s",
                    error=error,
                )
            else:
                self.has_looked = True

    def _free(
        self, batch: dict[tuple[str, ...], list[Held]]
    ) -> Iterator[tuple[tuple[str, ...], int]]:
        """
        Iterate over the sets of keys that are free, each with how many could acquire them now.

        While a quorum votes, that is every message that waits for one. Messages enter their wait
        queues before the keys are read.
        """
        client = self._client
        if batch.pop((QUORUM,), None):
            polled = poll_nodes(client)
            if sum(isinstance(vote, Granted | Refused) for vote in polled.votes) >= polled.needed:
                yield (QUORUM,), len(self._held)
        waiters = [(key, it.waiter) for held in batch.values() for it in held for key in it.keys]
        slots = {keys: list(map(places_in_header, keys)) for keys in batch}
        places = [place for of in slots.values() for of_key in of for place in of_key]
        held = iter(client.inspect(places, waiters=waiters) if places else ())
        for keys, of in slots.items():
            free = [sum(next(held) is None for _ in of_key) for of_key in of]
            # All may try once a pause is over; most of them only wait for another key then.
            most = [len(self._held) if key.startswith(PAUSE_PREFIX) else 1 for key in keys]
            if all(free):
                yield keys, min(map(mul, free, most))


def _batches(
    doubted: dict[tuple[str, ...], list[Held]],
) -> Iterator[dict[tuple[str, ...], list[Held]]]:
    """Yield parts of `doubted` that are inspected in one command each."""
    batch: dict[tuple[str, ...], list[Held]] = {}
    size = 0
    for keys, held in doubted.items():
        batch[keys] = held
        size += sum(len(places_in_header(key)) for key in keys)
        if size >= INSPECTED_AT_ONCE:
            yield batch
            batch, size = {}, 0
    if batch:
        yield batch


def _is_asleep(held: Held) -> bool:
    """Return whether a message has not begun, and may begin."""
    return held.until > time.monotonic() + AT_ETA and not is_revoked(held.request)
