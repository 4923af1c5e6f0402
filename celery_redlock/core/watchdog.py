"""
The watchdog: one thread in a process that extends all its leases, and reports lost ones.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from celery_redlock._greenlets.polling import READ, WakeupPipe, as_milliseconds, new_poller
from celery_redlock._greenlets.threads import call_in_app, register_at_fork, start_native_thread
from celery_redlock._greenlets.unpatched import close_greenlet_hub, native_lock, unpatched
from celery_redlock._log import event_logger
from celery_redlock.core.holding import Holding, extend_leases
from celery_redlock.errors import LossReason
from celery_redlock.protocol.rounds import ExtendRound, Phase
from celery_redlock.transport import Transport, borrowed

_logger = event_logger(__name__)

#: Extensions sent to a node at once; more would delay the node's other clients.
_BATCH = 100

#: Seconds; leases that are due within this time are extended together.
_COALESCE = 0.01

#: Watches of released leases that may stay in a heap, beyond one for each live lease.
_MAX_STALE = 100

#: Seconds; for a shorter lease the watchdog connects at once, not when the first extension is due.
_SHORT_TTL = 6.0

#: Seconds without a lease to watch after which the thread ends.
_IDLE_TIMEOUT = 10.0

#: Seconds after which the votes on an unawaited release are looked at.
_SETTLE_AFTER = 1.0

#: Delivers a release that no caller waits for, or reports how it ended, in any case if called with
#: True; returns whether nothing is left to do.
Settle: TypeAlias = Callable[[bool], bool]


class Watch:
    """One lease under watch; times are on its transport's clock."""

    __slots__ = ("_seen_within", "extend_at", "hold_until", "lease")

    def __init__(self, lease: Holding, max_hold: float, seen_within: float) -> None:
        now = lease.now()
        self.lease = lease
        self._seen_within = seen_within
        # A lease that never expires needs no extension; only `max_hold` can end it.
        self.extend_at = now + self.period if lease.valid_until < math.inf else math.inf
        self.hold_until = now + max_hold

    @property
    def period(self) -> float:
        """Seconds from one extension to the next; `Lease.extend` may change the TTL."""
        return min(self.lease.ttl / 3, self._seen_within)

    @property
    def lost_at(self) -> float:
        """When the loss is reported: before the validity ends, so that a body can still stop."""
        return self.lease.valid_until - min(self.lease.ttl / 10, 0.5)

    @property
    def due(self) -> float:
        """When the watchdog has to look at this lease."""
        return min(self.extend_at, self.lost_at, self.hold_until)


#: The time, a number that keeps equal times apart, and the watch.
_Heap: TypeAlias = list[tuple[float, int, Watch]]


class _Thread:
    """One run of the watchdog's thread."""

    __slots__ = ("ident", "wakeup")

    def __init__(self) -> None:
        self.ident: int | None = None
        self.wakeup = WakeupPipe()


class Watchdog:
    """
    Extends leases until they are unwatched, at a third of their TTL; settles unawaited releases.

    A lease whose loss has to be seen earlier is extended more often.

    Guarantee: a lease that no quorum extends is reported as lost once, before it expires, if this
    thread gets to run; until then failures that may pass are retried. Limit: a stopped process, or
    a C extension that keeps the interpreter lock, stops this thread as well, and the report comes
    when it runs again.
    """

    def __init__(self) -> None:
        self._lock = native_lock()
        self._watches: dict[Holding, Watch] = {}
        self._heap: _Heap = []
        # When each lease has to be reported as lost, or earlier: an extension moves no entry.
        self._losses: _Heap = []
        # All wait for the same time, so the oldest is due first.
        self._settlements: deque[tuple[float, Transport, Settle]] = deque()
        self._sequence = itertools.count()
        self._thread: _Thread | None = None
        self._known_transports: weakref.WeakSet[Transport] = weakref.WeakSet()
        self._stopping = False
        self._wakes_at = 0.0
        self._get_ident = unpatched("_thread", "get_ident")
        self._sleep = unpatched("time", "sleep")

    def watch(self, lease: Holding, max_hold: float, seen_within: float = math.inf) -> None:
        """
        Extend `lease` until `unwatch`, for at most `max_hold` seconds from now; may be infinite.

        At most `seen_within` seconds lie between two extensions, so a lost key is found by then.

        For a lease that is watched already this replaces `max_hold`; it never delays the next
        extension, however often it is called.
        """
        watch = Watch(lease, max_hold, seen_within)
        is_short = lease.ttl < _SHORT_TTL and lease.valid_until < math.inf
        if is_short and lease.transport not in self._known_transports:
            # To connect, perhaps with TLS, can take as long as such a lease is valid.
            self._known_transports.add(lease.transport)
            watch.extend_at = lease.now()
        with self._lock:
            known = self._watches.get(lease)
            if known is not None:
                watch.extend_at = min(watch.extend_at, known.extend_at)
            self._watches[lease] = watch
            self._push(self._heap, watch.due, watch)
            self._push(self._losses, watch.lost_at, watch)
            if self._thread is None:
                self._start()
            elif watch.due < self._wakes_at:
                self._thread.wakeup.wake()

    def unwatch(self, lease: Holding) -> None:
        """Stop extending `lease`. An extension that was sent may still be under way."""
        with self._lock:
            self._watches.pop(lease, None)

    def settle_later(self, transport: Transport, settle: Settle) -> None:
        """Settle a release to these nodes, about once in a second until nothing is left to do."""
        at = transport.now() + _SETTLE_AFTER
        with self._lock:
            self._settlements.append((at, transport, settle))
            if self._thread is None:
                self._start()
            elif at < self._wakes_at:
                self._thread.wakeup.wake()

    def settle_now(self, transport: Transport) -> None:
        """Settle in this thread, finally, the remaining releases of a transport."""
        with self._lock:
            left = [settle for _, nodes, settle in self._settlements if nodes is transport]
            self._settlements = deque(one for one in self._settlements if one[1] is not transport)
        for settle in left:
            settle(True)

    def is_current_thread(self) -> bool:
        """Return whether the caller is a callback in the watchdog's thread."""
        thread = self._thread
        return thread is not None and thread.ident == self._get_ident()

    def stop_if_idle(self) -> None:
        """End the thread, and wait for its end, unless it has leases to extend."""
        with self._lock:
            thread = self._thread
            if self._watches or thread is None:
                return
            self._stopping = True
            thread.wakeup.wake()
        # The end of the interpreter may have ended the thread, which then cannot report its end.
        while (
            self._thread is thread
            and self._stopping
            and not self.is_current_thread()
            and not sys.is_finalizing()
        ):
            time.sleep(0.001)

    def reset_after_fork(self) -> None:
        """Close the pipe that a forked child inherited from its parent's watchdog."""
        if self._thread is not None:
            self._thread.wakeup.close_in_child()

    def _start(self) -> None:
        self._thread = thread = _Thread()
        try:
            start_native_thread(partial(self._run, thread), "redlock-watchdog")
        except BaseException:
            # A signal's exception may strike after the thread began; the thread then ends.
            self._thread = None
            raise

    def _push(self, heap: _Heap, at: float, watch: Watch) -> None:
        if len(heap) > _MAX_STALE + 2 * len(self._watches):
            heap[:] = [entry for entry in heap if self._is_live(entry[2])]
            heapq.heapify(heap)
        heapq.heappush(heap, (at, next(self._sequence), watch))

    def _is_live(self, watch: Watch) -> bool:
        return self._watches.get(watch.lease) is watch

    def _run(self, thread: _Thread) -> None:
        try:
            self._work(thread)
        finally:
            with self._lock:
                # Also after an error: the next watched lease starts another thread.
                if self._thread is thread:
                    self._thread = None
                    self._stopping = False

    def _work(self, thread: _Thread) -> None:
        thread.ident = self._get_ident()
        poller = new_poller()
        poller.register(thread.wakeup.fd, READ)
        while True:
            try:
                if self._wait_for_work(thread, poller):
                    break
                due = self._take_due()
            except BaseException as exc:
                self._log_and_continue(exc)
                continue
            for nodes, settle in self._take_settlements():
                try:
                    call_in_app(self._settle, nodes, settle)
                except BaseException as exc:
                    self._log_and_continue(exc)
            for transport, watches in due:
                try:
                    self._extend_due(transport, watches)
                except BaseException as exc:
                    self._log_and_continue(exc)
        # A TLS connection, which stays patched, may have waited in an event loop of its own.
        close_greenlet_hub()

    def _log_and_continue(self, error: BaseException) -> None:
        """Log any error and continue: the other leases still need extensions."""
        call_in_app(
            _logger.error, "watchdog-failed", "The lock watchdog failed in a round", exc_info=error
        )
        self._sleep(0.01)

    def _wait_for_work(self, thread: _Thread, poller: Any) -> bool:
        """Sleep until something is due; return True when the thread shall end."""
        idle_since: float | None = None
        while True:
            with self._lock:
                if self._thread is not thread:
                    thread.wakeup.close()
                    return True
                if not self._drop_unwatched():
                    continue
                left = self._until_next()
                if left is not None:
                    idle_since = None
                else:
                    now = time.monotonic()
                    idle_since = idle_since or now
                    left = idle_since + _IDLE_TIMEOUT - now
                    if left <= 0 or self._stopping:
                        self._thread = None
                        self._stopping = False
                        thread.wakeup.close()
                        return True
                self._stopping = False
            if left <= 0:
                return False
            poller.poll(as_milliseconds(min(left, _IDLE_TIMEOUT)))
            thread.wakeup.drain()

    def _until_next(self) -> float | None:
        """Return the seconds until something is due; None if nothing will be."""
        left = []
        self._wakes_at = math.inf
        if self._heap:
            self._wakes_at = self._heap[0][0]
            left.append(self._wakes_at - self._heap[0][2].lease.now())
        if self._settlements:
            at, nodes, _ = self._settlements[0]
            self._wakes_at = min(self._wakes_at, at)
            left.append(at - nodes.now())
        return min(left, default=None)

    def _drop_unwatched(self) -> bool:
        """Drop some stale entries; return whether the first one is live, or none is left."""
        for _ in range(_BATCH):
            if not self._heap or self._is_live(self._heap[0][2]):
                return True
            heapq.heappop(self._heap)
        return False

    def _take_due(self) -> list[tuple[Transport, list[Watch]]]:
        """Take one batch of due watches, by transport; a larger one would hold up `watch`."""
        due: dict[int, tuple[Transport, list[Watch]]] = {}
        taken: _Heap = []
        with self._lock:
            try:
                by = self._heap[0][2].lease.now() + _COALESCE if self._heap else 0.0
                while self._heap and len(taken) < _BATCH and self._heap[0][0] <= by:
                    watch = self._heap[0][2]
                    taken.append(self._heap[0])
                    heapq.heappop(self._heap)
                    if self._is_live(watch):
                        transport = watch.lease.transport
                        due.setdefault(id(transport), (transport, []))[1].append(watch)
            except BaseException:
                for entry in taken:
                    heapq.heappush(self._heap, entry)
                raise
        return list(due.values())

    def _take_settlements(self) -> list[tuple[Transport, Settle]]:
        """Take the next releases that are to be settled."""
        due: list[tuple[Transport, Settle]] = []
        with self._lock:
            while self._settlements and len(due) < _BATCH:
                at, nodes, settle = self._settlements[0]
                if at > nodes.now():
                    break
                self._settlements.popleft()
                due.append((nodes, settle))
        return due

    def _settle(self, transport: Transport, settle: Settle) -> None:
        if not settle(False):
            self.settle_later(transport, settle)

    def _extend_due(self, transport: Transport, watches: list[Watch]) -> None:
        try:
            now = transport.now()
            alive = [watch for watch in watches if not self._report_if_over(watch, now)]
            if alive:
                self._extend(transport, alive)
        finally:
            with self._lock:
                for watch in watches:
                    if self._is_live(watch):
                        self._push(self._heap, watch.due, watch)

    def _report_if_over(self, watch: Watch, now: float) -> bool:
        """
        Report a lease as lost if its hold is over or its validity ends.

        Returns:
            Whether the watch is over, also because another call has ended or replaced it.
        """
        if now >= watch.hold_until:
            reason = LossReason.MAX_HOLD
        elif now >= watch.lost_at:
            reason = LossReason.NOT_EXTENDED
        else:
            return not self._is_live(watch)
        with self._lock:
            if not self._is_live(watch):
                return True
            del self._watches[watch.lease]
        watch.lease.mark_lost(reason)
        return True

    def _extend(self, transport: Transport, watches: list[Watch]) -> None:
        rounds: dict[Holding, ExtendRound] = {}
        asked_at = 0.0
        try:
            with borrowed(transport) as channel:
                # No wait may run past the instant at which any lease has to be reported.
                channel.connect(max(0.0, self._next_loss() - transport.now()))
                leases = [watch.lease for watch in watches if self._is_live(watch)]
                asked_at = transport.now()
                rounds = extend_leases(channel, leases, until=self._next_loss(), linger=math.inf)
        finally:
            for watch in watches:
                round_ = rounds.get(watch.lease)
                granted = round_ is not None and round_.phase is Phase.GRANTED
                self._reschedule(watch, asked_at if granted else None)

    def _next_loss(self) -> float:
        """Return when the next lease has to be reported."""
        with self._lock:
            while self._losses:
                at, sequence, watch = self._losses[0]
                if not self._is_live(watch):
                    heapq.heappop(self._losses)
                elif watch.lost_at > at:  # extended since
                    heapq.heapreplace(self._losses, (watch.lost_at, sequence, watch))
                else:
                    return at
        return math.inf

    def _reschedule(self, watch: Watch, extended_at: float | None) -> None:
        lease = watch.lease
        if not self._is_live(watch):
            return
        if not lease.is_valid:
            _ = lease.lost  # to read it reports a loss that went unnoticed
            self.unwatch(lease)
        elif extended_at is not None:
            # Not from now on: a callback of another lease may have taken its time.
            watch.extend_at = extended_at + watch.period
        else:
            pause = min(lease.ttl / 12, 1.0)
            watch.extend_at = lease.now() + pause * random.uniform(0.5, 1.0)  # noqa: S311 - jitter


_watchdog = Watchdog()


def process_watchdog() -> Watchdog:
    """Return this process's watchdog; a forked child has its own, with nothing to watch."""
    return _watchdog


def _after_fork() -> None:
    global _watchdog  # one thread for a process is the point
    _watchdog.reset_after_fork()
    _watchdog = Watchdog()


register_at_fork(after_in_child=_after_fork)
