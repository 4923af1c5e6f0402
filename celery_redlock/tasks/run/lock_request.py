"""
The lock and the marker that a request needs before its body may run, and the end of its window.

A window (`until_expired`) is counted by the clocks of the nodes. The clocks of publisher and worker
may differ by minutes, so `on_own_clock` compares no moment of a message with this host's time where
it can avoid that: the nodes know how long the reservation has left, and the message knows how much
longer than that the window lasts, because the publisher read both moments from one clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from celery_redlock._log import event_logger
from celery_redlock.core import Client, Lease, Reservation
from celery_redlock.core.client import FAIR_GRACE
from celery_redlock.core.failures import Refusal
from celery_redlock.core.waiting import After, limited
from celery_redlock.errors import LockContended, LockKeyError, QuorumUnavailable
from celery_redlock.protocol.commands import Waiter
from celery_redlock.protocol.keys import Key, given_back, has_limit
from celery_redlock.protocol.timing import milliseconds
from celery_redlock.tasks.border import RequestLike, TaskLike, ignores_result
from celery_redlock.tasks.config.client import client_for, lock_keys
from celery_redlock.tasks.config.options import LockOptions, LockPlan
from celery_redlock.tasks.message import expiry
from celery_redlock.tasks.message.envelope import (
    REMEMBERED_FOR,
    Envelope,
    rank_of,
    waiter_name,
    with_bounded_lifetime,
    within_bounds,
)
from celery_redlock.tasks.message.expiry import expires_at, is_continuation, lifetime
from celery_redlock.tasks.message.in_words import in_words
from celery_redlock.tasks.message.node_keys import (
    dedupe_key_for,
    marker_of,
    publish_keys,
    stop_request_keys,
    tick_id_of,
)
from celery_redlock.tasks.message.owner_label import label_for, parse_owner
from celery_redlock.tasks.message.tick import Tick
from celery_redlock.tasks.node_watch import report_unavailable
from celery_redlock.tasks.rules.facts import Role

logger = event_logger(__name__)

#: Seconds in which a worker process retries where `lock_wait` is not set.
DEFAULT_WAIT = 0.5

#: Longest time of a short body in seconds: waiting for its end is faster than a requeue.
SHORT_BODY = 0.1

#: A message waits in its process for up to `WAIT_IN_PLACE` seconds, because its next delivery would
#: be later. If it waits for its turn, that must be at most `TURN_IN_PLACE` seconds away.
TURN_IN_PLACE, WAIT_IN_PLACE = 0.25, 0.3


#: First pause in seconds before a worker reads a reservation again: it may have received the
#: message before the publisher extended the reservation.
FIRST_RECHECK = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRequest:
    """
    The keys that one request acquires, all or none.

    Attributes:
        task: the task that is to run.
        request: its request.
        options: the task's lock options.
        marks_messages: each of the task's messages has a dedupe marker.
        client: the app's client.
        keys: the lock keys of the call; none for a task that is only kept from running twice.
        dedupe_key: node key of the dedupe marker of the message or its tick; "" where it has none.
        envelope: what came with the message; without a reservation that is not for these keys.
        started: when the request got here, in seconds since the epoch.
        tick: the tick for which a schedule sent the message, if one did.
        window_ends: when the window of its keys ends (`until_expired`), on the client's own clock.
    """

    task: TaskLike
    request: RequestLike
    options: LockOptions
    marks_messages: bool
    client: Client
    keys: tuple[Key, ...]
    dedupe_key: str
    envelope: Envelope
    started: float
    tick: Tick | None = None
    window_ends: float | None = None

    @property
    def holds_until_postrun(self) -> bool:
        """
        Whether the keys are held until Celery has stored the result and sent the successors.

        This is so for every message of some tasks, and for the messages of ticks of any task.
        """
        return self.marks_messages or self.tick is not None

    @property
    def tick_id(self) -> str | None:
        """The id in the owner values of all messages of its tick; None without a tick."""
        if self.tick is None or not self.dedupe_key:
            return None
        return tick_id_of(self.client, self.tick, name=self.task.name)

    def label_as(self, role: Role) -> str:
        """Return the label in the owner value of this request."""
        return label_for(
            role,
            self.request.id or "",
            self.request.hostname,
            due_us=None if self.tick is None else self.tick.due_us,
            tick_id=self.tick_id,
            nonce=self.envelope.nonce if role in (Role.SKIPPED, Role.ABANDONED) else None,
            marker=marker_of(self.dedupe_key) if self.options.mode_spec.at_publish else None,
            task=self.task.name,
            sent_us=self.age_us if self.options.stops and self.tick is None else None,
            ignored=self.ignores_result,
        )

    @property
    def ignores_result(self) -> bool:
        """Whether no result of it is stored, so that no other program can read one."""
        is_eager = self.request.is_eager and not self.task.store_eager_result
        return is_eager or bool(ignores_result(self.task, self.request))

    @property
    def age_us(self) -> int:
        """
        By when its call is compared with others, in microseconds since the epoch.

        That is when its tick is due, when the call was sent, or when a worker first looked at it.
        """
        if self.tick is not None:
            return self.tick.due_us
        history, sent = self.envelope.wait_history, self.envelope.sent
        if sent is None:
            sent = self.started if history is None else history.first_seen
        return round(sent * 1_000_000)

    @property
    def is_continuation(self) -> bool:
        """Whether it continues work that has begun: a retry, or a replacement."""
        # Celery counts the steps after a replaced one as replacements, but its publisher does not.
        return is_continuation(self.request) and self.envelope.duplicate_of is None

    @property
    def held_keys(self) -> tuple[Key, ...]:
        """The lock keys that are held until they are released: all but those with a rate."""
        return given_back(self.keys)

    @property
    def stop_request_keys(self) -> tuple[Key, ...]:
        """The keys that a newer call acquires to ask this one to stop; held with the keys."""
        if not self.options.stops:
            return ()
        return stop_request_keys(self.keys)

    @property
    def place(self) -> Reservation | None:
        """The stop-request keys that it has, as the next to run; None if it has asked nobody."""
        reservation, stop_keys = self.envelope.reservation, set(self.stop_request_keys)
        if reservation is None or not stop_keys:
            return None
        return reservation if stop_keys.issuperset(reservation.keys) else None

    @property
    def records(self) -> tuple[Key, ...]:
        """The records that it acquires with the keys; the marker first, to show a redelivery."""
        marker = (Key.record(self.dedupe_key),) if self.dedupe_key else ()
        queued = self.publish_keys if self.options.mode_spec.own_queue_key else ()
        return (*marker, *queued, *self.stop_request_keys)

    @property
    def publish_keys(self) -> tuple[Key, ...]:
        """The keys of the reservation that a message of this call brings along."""
        return given_back(publish_keys(self.options.mode_spec, self.keys))

    @property
    def released_before_body(self) -> tuple[Key, ...]:
        """The keys released before the body, so that the next message may wait while it runs."""
        return () if self.options.mode_spec.held_in_body else self.publish_keys

    @property
    def transferable_keys(self) -> tuple[Key, ...]:
        """The keys acquired at publish and held in the body, so that they can be handed over."""
        return () if self.released_before_body else self.publish_keys

    @property
    def window_remaining(self) -> float | None:
        """The seconds for which the keys stay taken after the body; None without a window."""
        if self.window_ends is None:
            return None
        return max(0.0, self.window_ends - self.client.transport.now())

    @property
    def marker_ttl(self) -> float:
        """Seconds for which the marker of a finished message is kept."""
        window = self.options.dedupe_window
        if self.tick is None or self.tick.until is None:
            return window
        # However wrong this clock is, the time left is at most that from this tick to the next.
        left = min(self.tick.until - time.time(), self.tick.until - self.tick.due)
        return window + max(0.0, left)

    def expires_at(self, now: float) -> float:
        """Return when the message expires, in seconds since the epoch; infinite if it does not."""
        moment = expires_at(self.task, {"expires": self.request.expires}, now)
        return math.inf if moment is None else moment

    @property
    def start_deadline(self) -> float:
        """The latest start of its body (`lock_starting_deadline`), in seconds since the epoch."""
        deadline = self.options.starting_deadline
        if self.tick is None or deadline is None or self.is_continuation or self.may_have_begun:
            return math.inf
        return self.tick.due + deadline

    @property
    def may_have_begun(self) -> bool:
        """Whether a worker may have been lost in the message's body, or the body returned it."""
        redelivered = (self.request.delivery_info or {}).get("redelivered")
        if self.options.mode_spec.at_publish:
            # A message that brought no lock was perhaps a duplicate from the start.
            accepted = self.envelope.reservation is not None
        else:
            # A message that is acknowledged before its body does not come again.
            accepted = bool(self.task.acks_late)
        return self.envelope.begun or bool(redelivered and accepted)

    @property
    def is_registered(self) -> bool:
        """Whether nodes that refuse it remember it: it has waited, or will wait for its turn."""
        history = self.envelope.wait_history
        if not self.options.requeues:
            return False
        if history is None:
            return self._is_named_at_once
        return self.started - history.first_seen < limited(self.options.give_up_after)

    @property
    def _is_named_at_once(self) -> bool:
        """
        Whether the first attempt registers the message as a waiter.

        With a limit, a first attempt without a name would gain nothing.
        """
        is_named = self.options.fair or has_limit(self.keys)
        return is_named and not (self.options.mode_spec.at_publish or self.request.is_eager)

    def waiter(self, *, is_registered: bool) -> Waiter:
        """Return the waiter that names the message in wait queues."""
        history = self.envelope.wait_history
        since = self.started if history is None else history.first_seen
        keep = milliseconds(self._remembered_for(since)) if is_registered else 0
        grace = milliseconds(FAIR_GRACE) if self.options.fair else 0
        return Waiter(
            waiter_name(self.request.id or ""),
            milliseconds(since),
            keep,
            grace,
            has_waited=history is not None,
            rank=rank_of(self.task.app, self.request.delivery_info),
        )

    def _first_waiter(self, waiter: Waiter, *, is_registered: bool) -> Waiter | None:
        # An order needs the name from the first attempt on. A keep time of 0 removes an earlier
        # registration and adds none.
        if is_registered or self.envelope.wait_history is not None or self.options.fair:
            return waiter
        # Only a message that will wait gives way to woken waiters, because these may be gone; and
        # where the newest call wins, to none.
        gives_way = self._requeues and not self.options.stops
        return replace(waiter, name="") if gives_way else None

    def _remembered_for(self, since: float) -> float:
        if not any(key.is_rate for key in self.keys):
            return REMEMBERED_FOR
        # Reserve no turn later than the moment at which the message gives up.
        return max(0.0, limited(self.options.give_up_after) - (self.started - since))

    def acquire(
        self,
        decide: Callable[[Refusal], After],
        registers_as: Callable[[], Waiter | None],
        *,
        by_name: bool = False,
    ) -> Lease:
        """
        Acquire everything within `lock_wait`; the message's reservation is no obstacle.

        Args:
            decide: returns what follows an attempt that others refused.
            registers_as: returns the waiter of one more attempt, which registers it; None: no such.
            by_name: try once, so that nodes which refuse the message remember it.

        Raises:
            LockContended: one of the keys is held; the error names it.
            QuorumUnavailable: too few nodes replied.
        """
        options, is_registered = self.options, by_name or self.is_registered
        mode, keys = options.mode_spec, self.keys
        if self.envelope.reservation is not None and not mode.waits_at_run:
            keys = self.held_keys  # the publisher's rates have counted the call
        waiter = self.waiter(is_registered=is_registered)
        try:
            return self.client.acquire_for_task(
                keys,
                self.records,  # the error names the first held one
                ttl=options.ttl,
                wait=0.0 if by_name else self._wait_limit,
                retry=options.retry,
                label=self.label_as(Role.RUNNING),
                at_least_for=0.0 if self.holds_until_postrun else options.at_least_for,
                reservation=self.envelope.reservation,
                decide=decide,
                waiter=waiter,
                registers_as=registers_as,
                first_waiter=self._first_waiter(waiter, is_registered=is_registered),
            )
        except LockContended as error:
            raise in_words(error) from None
        except QuorumUnavailable as error:
            report_unavailable(self.task, self.request.id, options, error)
            raise in_words(error) from None

    def acquire_marker(self, over: LockContended | None = None) -> Lease:
        """
        Acquire the marker alone, for a message that ends without its body; errors as `acquire`.

        Its role is not *running*: another delivery would take the work for begun.

        Args:
            over: the error with the marker's owner value, which this one takes over.
        """
        previous = None
        if over is not None and over.holder is not None:
            previous = Reservation.of_holder(over, (self.dedupe_key,))
        label = self.label_as(Role.QUEUED)
        try:
            return self.client.acquire_for_task(
                (), (self.dedupe_key,), ttl=self.options.ttl, label=label, reservation=previous
            )
        except (LockContended, QuorumUnavailable) as error:
            raise in_words(error) from None

    @property
    def _wait_limit(self) -> float:
        """
        Seconds to wait for the lock.

        Not longer than the body may begin; and a time limit that struck meanwhile would end the
        task.
        """
        hard, soft = self.request.timelimit or (None, None)
        limits = (hard or self.task.time_limit, soft or self.task.soft_time_limit)
        longest: float = min((limit / 2 for limit in limits if limit), default=math.inf)
        now = time.time()
        latest = min(self.expires_at(now), self.start_deadline)
        longest = min(longest, max(0.0, latest - now))
        if self.options.wait is not None:
            return min(self.options.wait, longest)
        # A node that refuses a key with a rate gives the message its turn.
        takes_turns = self._is_named_at_once and all(key.is_rate for key in self.keys)
        returns = takes_turns or self._requeues
        return min(WAIT_IN_PLACE if returns else DEFAULT_WAIT, longest)

    @property
    def _requeues(self) -> bool:
        """Whether it goes back to its queue if another task has a key."""
        return self.options.requeues and not self.request.is_eager


def lock_request_for(
    task: TaskLike,
    request: RequestLike,
    plan: LockPlan,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> LockRequest:
    """
    Return the keys that a request has to acquire.

    Raises:
        LockKeyError: no key can be made from its arguments.
    """
    client = client_for(task.app)
    envelope = within_bounds(Envelope.read(request.headers), task, request, plan.options)
    # An eager call comes from no schedule.
    tick = None if request.is_eager else envelope.tick
    try:
        keys = lock_keys(client, task, args, kwargs)
    except LockKeyError:
        if envelope.reservation is not None:
            client.cancel(envelope.reservation)
        raise
    lock_request = LockRequest(
        task=task,
        request=request,
        options=plan.options,
        marks_messages=plan.marks_messages,
        client=client,
        keys=keys,
        dedupe_key=_dedupe_key(client, request, plan, task, envelope),
        envelope=envelope,
        started=time.time(),
        tick=tick,
    )
    lock_request = _with_fitting_reservation(lock_request)
    envelope, window_ends = on_own_clock(client, plan.options, request, lock_request.envelope)
    envelope = with_bounded_lifetime(envelope, request, plan.options)
    return replace(lock_request, envelope=envelope, window_ends=window_ends)


def _dedupe_key(
    client: Client, request: RequestLike, plan: LockPlan, task: TaskLike, envelope: Envelope
) -> str:
    # Under `apply()` there is no message, and a caller that uses a task id twice means it.
    if request.is_eager:
        return ""
    if envelope.tick is None and not plan.marks_messages:
        return ""
    return dedupe_key_for(
        client,
        envelope,
        task_id=request.id or "",
        name=task.name,
        retries=request.retries or 0,
        nesting=request.replaced_task_nesting or 0,
    )


def _with_fitting_reservation(lock_request: LockRequest) -> LockRequest:
    reservation = lock_request.envelope.reservation
    if reservation is None:
        return lock_request
    if {key.lock for key in reservation.keys} == {key.stored for key in lock_request.publish_keys}:
        return lock_request
    if lock_request.place is not None:
        return lock_request
    logger.warning(
        "publish-lock-given-up",
        "Task %(task)s[%(task_id)s] was sent with a lock on %(publish_keys).200s, but in this "
        "worker its lock_key and lock_mode make %(keys)s; the lock of the message is released. "
        "Make publishers and workers run the same code.",
        task=lock_request.task.name,
        task_id=lock_request.request.id,
        publish_keys=", ".join(reservation.node_keys),
        keys=", ".join(key.stored for key in lock_request.publish_keys or lock_request.keys),
    )
    lock_request.client.cancel(reservation, wait=True)
    return replace(lock_request, envelope=replace(lock_request.envelope, reservation=None))


def on_own_clock(
    client: Client, options: LockOptions, request: RequestLike, envelope: Envelope
) -> tuple[Envelope, float | None]:
    """
    Return the envelope with its moments on this host's clock, and when the window ends.

    The end is on the client's monotonic clock; None without a window.

    Guarantee: the window lasts no longer than `lock_window` from now. It does not depend on the
    publisher's clock if the reservation is still stored, or an earlier part of the task is about to
    hand it over. Limit: otherwise (the worker was lost, or no quorum replies) the publisher's clock
    is compared with this host's.

    Args:
        client: the app's client.
        options: the options of the message's task.
        request: the message's request.
        envelope: the message's header.
    """
    window, until, reservation = options.window, envelope.window_until, envelope.reservation
    if window is None:
        return envelope, None
    if until is None or (reservation is None and not is_continuation(request)):
        # The key has not been held for this message before.
        return envelope, client.transport.now() + window
    now = time.time()
    least, most = 0.0, window
    if reservation is not None:
        beyond = until - reservation.expires_at
        read = partial(_read_remaining, client, options, request, reservation)
        life, surely = _remaining(client, read, window - beyond)
        now = time.time()
        if life is not None:
            # If unsure, it is unextended or nearly expired: the publisher's clock decides.
            least = life + beyond
            most = least if surely else window - (expiry.PUBLISH_GRACE - life)
            # From here on the reservation's moments are those of this host's clock.
            reservation = replace(reservation, expires_at=now + life)
    left = max(0.0, min(max(until - now, least), most, window))
    envelope = replace(envelope, reservation=reservation, window_until=now + left)
    return envelope, client.transport.now() + left


def _remaining(
    client: Client, read: Callable[[], float | None], whole: float
) -> tuple[float | None, bool]:
    """
    Return how long a reservation has left, and whether that is sure.

    It is not sure while the publisher may not have extended the reservation yet.

    Args:
        client: the app's client.
        read: returns how long the reservation has left on the nodes.
        whole: how long the reservation lasts once the message is due, or longer.
    """
    transport, grace = client.transport, expiry.PUBLISH_GRACE
    give_up_at = transport.now() + client.settings.node_timeout
    pause = FIRST_RECHECK
    while True:
        life = read()
        if life is None or life > grace or whole <= grace:
            return life, True
        if transport.now() + pause > give_up_at:
            return life, False
        transport.sleep(pause)
        pause *= 2


def _read_remaining(
    client: Client, options: LockOptions, request: RequestLike, reservation: Reservation
) -> float | None:
    """Return how long a reservation still lasts on the nodes; None where it is not stored."""
    if not reservation.node_keys:
        return None
    try:
        held = client.inspect(reservation.node_keys)
    except QuorumUnavailable:
        return None
    lives = [it.expires_in for it in held if it is not None and it.owner == reservation.owner]
    if lives:
        return max(0.0, *lives)
    holders = [parse_owner(it.owner) for it in held if it is not None]
    if is_continuation(request) and any(
        holder is not None and holder.role is Role.RUNNING and holder.is_of(request.id)
        for holder in holders
    ):
        # The reservation is handed over in a moment, and its time begins then.
        return lifetime(options, continuation=True)
    return None
