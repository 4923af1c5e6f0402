"""
What a request has to take before its body may run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from celery.utils.log import get_logger

from celery_redlock.core import Lease, Redlock, Reservation
from celery_redlock.errors import LockContended, LockKeyError
from celery_redlock.tasks.config.client import redlock_for
from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.config.plan import LockPlan
from celery_redlock.tasks.holding.window import count_window
from celery_redlock.tasks.messages.bounds import with_bounded_life, within_bounds
from celery_redlock.tasks.messages.envelope import Envelope
from celery_redlock.tasks.messages.owners import Role, label_for, read_owner
from celery_redlock.tasks.messages.periodic import goes_on, overlap_of, takes_no_lock, tick_of
from celery_redlock.tasks.messages.places import (
    about_key,
    companion_place,
    digest_of,
    mark_for,
    piece_of,
    publish_places,
)
from celery_redlock.tasks.messages.tick import Tick

__all__ = ["Claim", "claim_for"]

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """
    What one request takes, all or none.

    Attributes:
        task: the task that is to run.
        request: its request.
        plan: how it locks.
        redlock: the client.
        keys: the lock keys of the call; none for a task that is only kept from running twice.
        message: the place of the mark that the message or its tick has; "" where it has none.
        envelope: what came with the message; without a reservation that is not for these keys.
        started: when the request got here, in seconds since the epoch.
        tick: what a schedule sent the message for, if one did.
        overlap: what `lock_overlap` says, where this is a schedule's run.
        window_ends: until when its keys stay taken (`until_expired`), on the client's own clock.
    """

    task: Any
    request: Any
    plan: LockPlan
    redlock: Redlock
    keys: tuple[str, ...]
    message: str
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
    def marks(self) -> bool:
        """
        Whether what is taken is held until Celery has stored the result and sent on what follows.

        So for every message of some tasks, and for the messages of ticks, whatever the task.
        """
        return self.plan.marks_messages or self.tick is not None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to take."""
        return not self.keys and not self.message

    @property
    def label(self) -> str:
        """Who runs, for the owner value."""
        return self.label_as(Role.RUNNING)

    @property
    def piece(self) -> str | None:
        """What the owner values of all messages of its tick say; None without a tick."""
        if self.tick is None or not self.message:
            return None
        return piece_of(self.redlock, self.tick, name=self.task.name)

    def label_as(self, role: Role) -> str:
        """Return what the owner value of this request says."""
        return label_for(
            role,
            self.request.id or "",
            self.request.hostname,
            due_us=None if self.tick is None else self.tick.due_us,
            piece=self.piece,
            nonce=self.envelope.nonce if role in (Role.SKIPPED, Role.ABANDONED) else None,
            mark=digest_of(self.message) if self.options.rules.at_publish else None,
            task=self.task.name if self.options.rules.at_publish else None,
        )

    @property
    def goes_on(self) -> bool:
        """Whether it goes on with work that has begun: a retry, or a replacement."""
        return goes_on(self.request)

    @property
    def places(self) -> tuple[str, ...]:
        """Where its lock keys stand on the nodes."""
        return tuple(self.redlock.node_key(key) for key in self.keys)

    @property
    def companions(self) -> tuple[str, ...]:
        """What a newer run takes to ask this one to stop; held with the keys."""
        if self.options.overlap != "replace":
            return ()
        return tuple(map(companion_place, self.places))

    @property
    def published(self) -> tuple[str, ...]:
        """Where the lock stands that a message of this call brings along."""
        return publish_places(self.redlock, self.options.rules, self.keys)

    @property
    def not_in_body(self) -> tuple[str, ...]:
        """What is given up before the body, so that the next message may wait meanwhile."""
        rules = self.options.rules
        return self.published if rules.own_queue_key or not rules.in_body else ()

    @property
    def lasting(self) -> tuple[str, ...]:
        """What was taken at publish and is still held in the body, so that it can be handed on."""
        return () if self.not_in_body else self.published

    @property
    def window_left(self) -> float | None:
        """For how many seconds the keys stay taken after the body; None without a window."""
        if self.window_ends is None:
            return None
        return max(0.0, self.window_ends - self.redlock.transport.now())

    @property
    def window_until(self) -> float | None:
        """The same moment in seconds since the epoch, for the message that continues this one."""
        left = self.window_left
        return None if left is None else time.time() + left

    @property
    def remembered_for(self) -> float:
        """Seconds for which the mark of a finished message stands."""
        window = self.options.dedupe_window
        if self.tick is None or self.tick.until is None:
            return window
        # No clock makes it longer than from this tick to the next.
        left = min(self.tick.until - time.time(), self.tick.until - self.tick.due)
        return window + max(0.0, left)

    @property
    def starts_by(self) -> float:
        """Until when its body may begin (`lock_starting_deadline`), in seconds since the epoch."""
        deadline = self.options.starting_deadline
        if self.tick is None or deadline is None or self.goes_on or self.may_have_begun:
            return math.inf
        return self.tick.due + deadline

    @property
    def may_have_begun(self) -> bool:
        """Whether a worker may have been lost in this message's body, or its body sent it back."""
        redelivered = (self.request.delivery_info or {}).get("redelivered")
        if self.options.rules.at_publish:
            # One that brought no lock was perhaps a duplicate from the start.
            accepted = self.envelope.reservation is not None
        else:
            # Acknowledged before its body, it would not come again.
            accepted = bool(self.task.acks_late)
        return self.envelope.begun or bool(redelivered and accepted)

    def take(self, final: Callable[[LockContended], bool] | None = None) -> Lease:
        """
        Take everything, as `lock_wait` says; the message's reservation is no obstacle.

        Args:
            final: whether waiting is no use, beyond what `_is_over` knows.

        Raises:
            LockContended: one of the keys is held; the error names it.
            QuorumUnavailable: too few nodes answered.
        """
        options = self.options
        queued = self.published if options.rules.own_queue_key else ()
        extras = (*queued, *self.companions)
        try:
            return self.redlock.reservations.acquire_for_task(
                self.keys,
                # The first of those that are held is what the error names: a twin before all.
                (self.message, *extras) if self.message else extras,
                ttl=options.ttl,
                wait=self._patience,
                retry=options.retry,
                label=self.label,
                at_least_for=0.0 if self.marks else options.at_least_for,
                reservation=self.envelope.reservation,
                give_up_on=self._hopeless(final) if self.marks else None,
            )
        except LockContended as error:
            raise about_key(error, self.redlock) from None

    def sign(self, over: LockContended | None = None) -> Lease:
        """
        Take the mark alone, for a message that ends without its body; errors as `take`.

        It does not say that anybody runs: who meets it would take the work for begun.

        Args:
            over: names the owner value that the mark has, to be taken over.
        """
        previous = None
        if over is not None and over.holder is not None:
            until = time.time() + (over.expires_in or 0.0)
            previous = Reservation(node_keys=(self.message,), owner=over.holder, expires_at=until)
        label = self.label_as(Role.QUEUED)
        return self.redlock.reservations.acquire_for_task(
            (), (self.message,), ttl=self.options.ttl, label=label, reservation=previous
        )

    @property
    def _patience(self) -> float:
        """Seconds to wait for the lock; a time limit that struck meanwhile would end the task."""
        hard, soft = self.request.timelimit or (None, None)
        limits = (hard or self.task.time_limit, soft or self.task.soft_time_limit)
        longest: float = min((limit / 2 for limit in limits if limit), default=math.inf)
        return min(self.options.wait, longest)

    def _hopeless(
        self, final: Callable[[LockContended], bool] | None
    ) -> Callable[[LockContended], bool]:
        if final is None:
            return self._is_over
        return lambda error: self._is_over(error) or final(error)

    def _is_over(self, error: LockContended) -> bool:
        """Tell whether waiting is no use: what is held only keeps others away for a while."""
        holder = read_owner(error.holder)
        if holder is None or not holder.role.is_over:
            return False
        return error.key == self.message or self.options.rules.for_window


def claim_for(
    task: Any, request: Any, plan: LockPlan, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Claim:
    """
    Return what a request has to take.

    Raises:
        LockKeyError: its arguments make no key.
    """
    redlock = redlock_for(task.app)
    envelope = within_bounds(Envelope.read(request.headers), task, request, plan.options)
    tick = tick_of(request, envelope)
    overlap = overlap_of(request, tick, plan.options)
    maker = None if takes_no_lock(request, tick, plan.options) else plan.keys
    try:
        keys = maker.keys_for(args, kwargs) if maker is not None else ()
    except LockKeyError:
        if envelope.reservation is not None:
            redlock.reservations.cancel(envelope.reservation)
        raise
    claim = Claim(
        task=task,
        request=request,
        plan=plan,
        redlock=redlock,
        keys=keys,
        message=_mark(redlock, request, plan, task, envelope),
        envelope=envelope,
        started=time.time(),
        tick=tick,
        overlap=overlap,
    )
    claim = count_window(_with_fitting_reservation(claim))
    return replace(claim, envelope=with_bounded_life(claim.envelope, request, plan.options))


def _mark(redlock: Redlock, request: Any, plan: LockPlan, task: Any, envelope: Envelope) -> str:
    # Under `apply()` there is no message, and who names a task id twice means it.
    if request.is_eager:
        return ""
    if envelope.tick is None and not plan.marks_messages:
        return ""
    return mark_for(
        redlock,
        envelope,
        task_id=request.id or "",
        name=task.name,
        retries=request.retries or 0,
        nesting=request.replaced_task_nesting or 0,
    )


def _with_fitting_reservation(claim: Claim) -> Claim:
    reservation = claim.envelope.reservation
    if reservation is None or set(reservation.node_keys) == set(claim.published):
        return claim
    if claim.companions and set(reservation.node_keys) <= set(claim.companions):
        return claim  # it has asked an older run to stop, and is the next
    logger.warning(
        "Task %s[%s] was sent with a lock on %.200s, but its lock_key and lock_mode come to %s "
        "here; "
        "the former is given up. Let publishers and workers run the same code.",
        claim.task.name,
        claim.request.id,
        ", ".join(reservation.node_keys),
        ", ".join(claim.published or claim.places),
    )
    claim.redlock.reservations.cancel(reservation, wait=True)
    return replace(claim, envelope=replace(claim.envelope, reservation=None))
