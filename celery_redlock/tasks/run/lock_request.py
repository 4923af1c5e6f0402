"""
The lock and the marker that a request needs before its body may run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from celery_redlock._log import event_logger
from celery_redlock.core import Lease, Redlock, Reservation
from celery_redlock.core.reservations import FAIR_GRACE
from celery_redlock.core.wait_limit import limited
from celery_redlock.errors import LockContended, LockKeyError, QuorumUnavailable
from celery_redlock.protocol import Waiter, milliseconds
from celery_redlock.protocol.keys import LimitedKey, is_rate, lock_of, without_rates
from celery_redlock.tasks.config.client import redlock_for
from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.config.plan import LockPlan
from celery_redlock.tasks.message.envelope import REMEMBERED_FOR, Envelope, waiter_name
from celery_redlock.tasks.message.header_limits import with_bounded_lifetime, within_bounds
from celery_redlock.tasks.message.in_words import in_words
from celery_redlock.tasks.message.node_keys import (
    dedupe_key_for,
    marker_of,
    publish_keys,
    stop_request_key,
    tick_id_of,
)
from celery_redlock.tasks.message.owner_label import Role, label_for
from celery_redlock.tasks.message.periodic import (
    is_continuation,
    overlap_of,
    runs_unlocked,
    tick_of,
)
from celery_redlock.tasks.message.tick import Tick
from celery_redlock.tasks.node_watch import report_unavailable
from celery_redlock.tasks.run.window import Window

__all__ = ["IN_PLACE", "SHORT_BODY", "LockRequest", "lock_request_for"]

logger = event_logger(__name__)

#: Seconds in which a worker process retries where `lock_wait` is not set.
DEFAULT_WAIT = 0.5

#: Seconds that a short body takes: to wait beside it is faster than the way back to the queue.
SHORT_BODY = 0.1

#: Seconds for which a message may wait in its process: its next delivery would be later. One whose
#: turn is within the first of these times may come at the end of the second.
TURN_IN_PLACE, IN_PLACE = 0.25, 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRequest:
    """
    The keys that one request acquires, all or none.

    Attributes:
        task: the task that is to run.
        request: its request.
        plan: how it locks.
        redlock: the client.
        keys: the lock keys of the call; none for a task that is only kept from running twice.
        dedupe_key: node key of the dedupe marker of the message or its tick; "" where it has none.
        envelope: what came with the message; without a reservation that is not for these keys.
        started: when the request got here, in seconds since the epoch.
        tick: the tick for which a schedule sent the message, if one did.
        overlap: `lock_overlap`, where this is a schedule's run.
        window_ends: until when its keys stay held (`until_expired`), on the client's own clock.
    """

    task: Any
    request: Any
    plan: LockPlan
    redlock: Redlock
    keys: tuple[str, ...]
    dedupe_key: str
    envelope: Envelope
    started: float
    tick: Tick | None = None
    overlap: str | None = None
    window_ends: float | None = None

    @property
    def options(self) -> LockOptions:
        """The task's lock options."""
        return self.plan.options

    @property
    def holds_until_postrun(self) -> bool:
        """
        Whether what is taken is held until Celery has stored the result and sent on what follows.

        So for every message of some tasks, and for the messages of ticks, whatever the task.
        """
        return self.plan.marks_messages or self.tick is not None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to take."""
        return not self.keys and not self.dedupe_key

    @property
    def is_judged_on_arrival(self) -> bool:
        """Whether the rules decide about it before it acquires: a tick, or a known duplicate."""
        return self.tick is not None or self.envelope.duplicate_of is not None

    @property
    def label(self) -> str:
        """The label of the run, for the owner value."""
        return self.label_as(Role.RUNNING)

    @property
    def tick_id(self) -> str | None:
        """The id in the owner values of all messages of its tick; None without a tick."""
        if self.tick is None or not self.dedupe_key:
            return None
        return tick_id_of(self.redlock, self.tick, name=self.task.name)

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
        )

    @property
    def is_continuation(self) -> bool:
        """Whether it continues work that has begun: a retry, or a replacement."""
        return is_continuation(self.request)

    @property
    def node_keys(self) -> tuple[str, ...]:
        """Where its lock keys stand on the nodes."""
        return tuple(self.redlock.node_key(key) for key in self.keys)

    @property
    def stop_request_keys(self) -> tuple[str, ...]:
        """The keys that a newer run acquires to ask this one to stop; held with the keys."""
        if self.options.overlap != "replace":
            return ()
        return tuple(map(stop_request_key, self.node_keys))

    @property
    def publish_keys(self) -> tuple[str, ...]:
        """The keys of the reservation that a message of this call brings along."""
        return without_rates(publish_keys(self.redlock, self.options.mode_spec, self.keys))

    @property
    def released_before_body(self) -> tuple[str, ...]:
        """The keys released before the body, so that the next message may wait meanwhile."""
        mode = self.options.mode_spec
        return self.publish_keys if mode.own_queue_key or not mode.in_body else ()

    @property
    def transferable_keys(self) -> tuple[str, ...]:
        """The keys acquired at publish and held in the body, so that they can be handed over."""
        return () if self.released_before_body else self.publish_keys

    @property
    def window_remaining(self) -> float | None:
        """For how many seconds the keys stay taken after the body; None without a window."""
        if self.window_ends is None:
            return None
        return max(0.0, self.window_ends - self.redlock.transport.now())

    @property
    def window_until(self) -> float | None:
        """The same moment in seconds since the epoch, for the message that continues this one."""
        left = self.window_remaining
        return None if left is None else time.time() + left

    @property
    def marker_ttl(self) -> float:
        """Seconds for which the marker of a finished message is kept."""
        window = self.options.dedupe_window
        if self.tick is None or self.tick.until is None:
            return window
        # No clock makes it longer than from this tick to the next.
        left = min(self.tick.until - time.time(), self.tick.until - self.tick.due)
        return window + max(0.0, left)

    @property
    def start_deadline(self) -> float:
        """Until when its body may begin (`lock_starting_deadline`), in seconds since the epoch."""
        deadline = self.options.starting_deadline
        if self.tick is None or deadline is None or self.is_continuation or self.may_have_begun:
            return math.inf
        return self.tick.due + deadline

    @property
    def may_have_begun(self) -> bool:
        """Whether a worker may have been lost in this message's body, or its body sent it back."""
        redelivered = (self.request.delivery_info or {}).get("redelivered")
        if self.options.mode_spec.at_publish:
            # One that brought no lock was perhaps a duplicate from the start.
            accepted = self.envelope.reservation is not None
        else:
            # Acknowledged before its body, it would not come again.
            accepted = bool(self.task.acks_late)
        return self.envelope.begun or bool(redelivered and accepted)

    @property
    def is_remembered(self) -> bool:
        """Whether nodes that refuse it remember it: it has waited, or will wait for its turn."""
        history = self.envelope.wait_history
        if self.options.run_policy != "requeue" and self.overlap is None:
            return False
        if history is None:
            return self._is_named_at_once
        return self.started - history.first_seen < limited(self.options.give_up_after)

    @property
    def _is_named_at_once(self) -> bool:
        """Whether its first try names it: a second one that does would come to the same."""
        is_named = self.options.fair or any(isinstance(key, LimitedKey) for key in self.keys)
        return is_named and not (self.options.mode_spec.at_publish or self.request.is_eager)

    @property
    def _takes_turns(self) -> bool:
        """Whether it acquires keys with a rate only: a node that refuses one gives it its turn."""
        return self._is_named_at_once and all(map(is_rate, self.keys))

    def _waiter(self, *, is_remembered: bool) -> Waiter:
        history = self.envelope.wait_history
        since = self.started if history is None else history.first_seen
        name = waiter_name(self.request.id or "")
        keep = milliseconds(self._remembered_for(since)) if is_remembered else 0
        grace = milliseconds(FAIR_GRACE) if self.options.fair else 0
        return Waiter(name, milliseconds(since), keep, grace, has_waited=history is not None)

    def _first_waiter(self, waiter: Waiter, *, is_remembered: bool) -> Waiter | None:
        # To go in order it has to be named from its first try on; nodes then forget it if it had
        # waited, and do not begin to remember it.
        if is_remembered or self.envelope.wait_history is not None or self.options.fair:
            return waiter
        # Only one that will wait gives way: those that were woken may be gone. And a schedule's run
        # goes by its own order.
        gives_way = self._requeues and self.overlap is None
        return replace(waiter, name="") if gives_way else None

    def _remembered_for(self, since: float) -> float:
        if not any(map(is_rate, self.keys)):
            return REMEMBERED_FOR
        # A turn after its end would be nobody's.
        return max(0.0, limited(self.options.give_up_after) - (self.started - since))

    def acquire(self, is_final: Callable[[LockContended], bool], *, by_name: bool = False) -> Lease:
        """
        Acquire everything within `lock_wait`; the message's reservation is no obstacle.

        Args:
            is_final: whether it waits no longer.
            by_name: try once, so that nodes which refuse the message remember it.

        Raises:
            LockContended: one of the keys is held; the error names it.
            QuorumUnavailable: too few nodes answered.
        """
        options, is_remembered = self.options, by_name or self.is_remembered
        mode, keys = options.mode_spec, self.keys
        if self.envelope.reservation is not None and not mode.waits_at_run:
            keys = without_rates(keys)  # its publisher has counted the call
        queued = self.publish_keys if mode.own_queue_key else ()
        extras = (*queued, *self.stop_request_keys)
        waiter = self._waiter(is_remembered=is_remembered)
        try:
            return self.redlock.reservations.acquire_for_task(
                keys,
                # The error names the first key that is held: a redelivery precedes all.
                (self.dedupe_key, *extras) if self.dedupe_key else extras,
                ttl=options.ttl,
                wait=0.0 if by_name else self._wait_limit,
                retry=options.retry,
                label=self.label,
                at_least_for=0.0 if self.holds_until_postrun else options.at_least_for,
                reservation=self.envelope.reservation,
                give_up_on=is_final,
                waiter=waiter,
                first_waiter=self._first_waiter(waiter, is_remembered=is_remembered),
            )
        except LockContended as error:
            raise in_words(error, self.redlock) from None
        except QuorumUnavailable as error:
            report_unavailable(self.task, self.request.id, options, error)
            raise in_words(error, self.redlock) from None

    def acquire_marker(self, over: LockContended | None = None) -> Lease:
        """
        Acquire the marker alone, for a message that ends without its body; errors as `acquire`.

        It does not state that a body runs: another delivery would take the work for begun.

        Args:
            over: names the owner value of the marker that this one takes over.
        """
        previous = None
        if over is not None and over.holder is not None:
            until = time.time() + (over.expires_in or 0.0)
            previous = Reservation(
                node_keys=(self.dedupe_key,), owner=over.holder, expires_at=until
            )
        label = self.label_as(Role.QUEUED)
        try:
            return self.redlock.reservations.acquire_for_task(
                (), (self.dedupe_key,), ttl=self.options.ttl, label=label, reservation=previous
            )
        except (LockContended, QuorumUnavailable) as error:
            raise in_words(error, self.redlock) from None

    @property
    def _wait_limit(self) -> float:
        """Seconds to wait for the lock; a time limit that struck meanwhile would end the task."""
        hard, soft = self.request.timelimit or (None, None)
        limits = (hard or self.task.time_limit, soft or self.task.soft_time_limit)
        longest: float = min((limit / 2 for limit in limits if limit), default=math.inf)
        if self.options.wait is not None:
            return min(self.options.wait, longest)
        returns = self._takes_turns or self._requeues
        return min(IN_PLACE if returns else DEFAULT_WAIT, longest)

    @property
    def _requeues(self) -> bool:
        """Whether it goes back to its queue where another task has a key."""
        return self.options.run_policy == "requeue" and not self.request.is_eager


def lock_request_for(
    task: Any, request: Any, plan: LockPlan, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> LockRequest:
    """
    Return what a request has to take.

    Raises:
        LockKeyError: its arguments make no key.
    """
    redlock = redlock_for(task.app)
    envelope = within_bounds(Envelope.read(request.headers), task, request, plan.options)
    tick = tick_of(request, envelope)
    overlap = overlap_of(request, tick, plan.options)
    maker = None if runs_unlocked(request, tick, plan.options) else plan.keys
    try:
        keys = maker.keys_for(args, kwargs) if maker is not None else ()
    except LockKeyError:
        if envelope.reservation is not None:
            redlock.reservations.cancel(envelope.reservation)
        raise
    lock_request = LockRequest(
        task=task,
        request=request,
        plan=plan,
        redlock=redlock,
        keys=keys,
        dedupe_key=_dedupe_key(redlock, request, plan, task, envelope),
        envelope=envelope,
        started=time.time(),
        tick=tick,
        overlap=overlap,
    )
    lock_request = _with_fitting_reservation(lock_request)
    envelope, window_ends = Window(
        redlock=redlock,
        options=plan.options,
        request=request,
        envelope=lock_request.envelope,
        publish_keys=lock_request.publish_keys,
    ).on_own_clock()
    envelope = with_bounded_lifetime(envelope, request, plan.options)
    return replace(lock_request, envelope=envelope, window_ends=window_ends)


def _dedupe_key(
    redlock: Redlock, request: Any, plan: LockPlan, task: Any, envelope: Envelope
) -> str:
    # Under `apply()` there is no message, and who names a task id twice means it.
    if request.is_eager:
        return ""
    if envelope.tick is None and not plan.marks_messages:
        return ""
    return dedupe_key_for(
        redlock,
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
    if set(map(lock_of, reservation.node_keys)) == set(lock_request.publish_keys):
        return lock_request
    if lock_request.stop_request_keys and set(reservation.node_keys) <= set(
        lock_request.stop_request_keys
    ):
        return lock_request  # it has asked an older run to stop, and is the next
    logger.warning(
        "publish-lock-given-up",
        "Task %(task)s[%(task_id)s] was sent with a lock on %(publish_keys).200s, but its "
        "lock_key and lock_mode come to %(keys)s here; the former is given up. Let publishers and "
        "workers run the same code.",
        task=lock_request.task.name,
        task_id=lock_request.request.id,
        publish_keys=", ".join(reservation.node_keys),
        keys=", ".join(lock_request.publish_keys or lock_request.node_keys),
    )
    lock_request.redlock.reservations.cancel(reservation, wait=True)
    return replace(lock_request, envelope=replace(lock_request.envelope, reservation=None))
