"""
What a request has to take before its body may run.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

from celery.utils.log import get_logger

from celery_redlock.core import Lease, Redlock
from celery_redlock.errors import LockContended, LockKeyError
from celery_redlock.tasks.client import redlock_for
from celery_redlock.tasks.envelope import Envelope
from celery_redlock.tasks.options import LockOptions
from celery_redlock.tasks.owners import Role, label_for, read_owner
from celery_redlock.tasks.places import message_place, publish_places
from celery_redlock.tasks.plan import LockPlan

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
        message: the place of the message's mark; "" where it has none.
        envelope: what came with the message; without a reservation that is not for these keys.
        started: when the request got here, in seconds since the epoch.
    """

    task: Any
    request: Any
    plan: LockPlan
    redlock: Redlock
    keys: tuple[str, ...]
    message: str
    envelope: Envelope
    started: float

    @property
    def options(self) -> LockOptions:
        """The task's lock options."""
        return self.plan.options

    @property
    def label(self) -> str:
        """Who runs, for the owner value."""
        return label_for(Role.RUNNING, self.request.id or "", self.request.hostname)

    @property
    def places(self) -> tuple[str, ...]:
        """Where its lock keys stand on the nodes."""
        return tuple(self.redlock.place(key) for key in self.keys)

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
    def window_until(self) -> float | None:
        """Until when the keys stay taken after the body, in seconds since the epoch."""
        if self.options.window is None:
            return None
        return self.envelope.window_until or self.started + self.options.window

    @property
    def may_have_begun(self) -> bool:
        """Whether a worker may have been lost in this message's body, or its body sent it back."""
        redelivered = (self.request.delivery_info or {}).get("redelivered")
        # One that brought no lock was perhaps a duplicate from the start.
        accepted = self.envelope.reservation is not None
        return self.envelope.begun or bool(redelivered and accepted)

    def take(self) -> Lease:
        """
        Take everything, as `lock_wait` says; the message's reservation is no obstacle.

        Raises:
            LockContended: one of the keys is held; the error names it.
            QuorumUnavailable: too few nodes answered.
        """
        options = self.options
        queued = self.published if options.rules.own_queue_key else ()
        return self.redlock.take(
            self.keys,
            # The first of those that are held is what the error names: a twin is one before all.
            (self.message, *queued) if self.message else queued,
            ttl=options.ttl,
            wait=self._patience,
            retry=options.retry,
            label=self.label,
            at_least_for=0.0 if self.plan.marks_messages else options.at_least_for,
            reservation=self.envelope.reservation,
            final=self._is_over if self.plan.marks_messages else None,
        )

    def sign(self) -> Lease:
        """Take the mark alone, for a message that ends without its body; errors as `take`."""
        return self.redlock.take((), (self.message,), ttl=self.options.ttl, label=self.label)

    @property
    def _patience(self) -> float:
        """Seconds to wait for the lock; a time limit that struck meanwhile would end the task."""
        hard, soft = self.request.timelimit or (None, None)
        limits = (hard or self.task.time_limit, soft or self.task.soft_time_limit)
        longest: float = min((limit / 2 for limit in limits if limit), default=math.inf)
        return min(self.options.wait, longest)

    def _is_over(self, error: LockContended) -> bool:
        """Tell whether waiting is no use: what is held only keeps others away for a while."""
        holder = read_owner(error.holder)
        if holder is None or holder.role is not Role.FINISHED:
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
    envelope = Envelope.read(request.headers)
    try:
        keys = plan.keys.keys_for(args, kwargs) if plan.keys is not None else ()
    except LockKeyError:
        if envelope.reservation is not None:
            redlock.cancel(envelope.reservation)
        raise
    claim = Claim(
        task=task,
        request=request,
        plan=plan,
        redlock=redlock,
        keys=keys,
        # Under `apply()` there is no message, and who names a task id twice means it.
        message=""
        if request.is_eager or not plan.marks_messages
        else _mark(redlock, request, task, envelope),
        envelope=envelope,
        started=time.time(),
    )
    return claim if envelope.reservation is None else _with_fitting_reservation(claim)


def _mark(redlock: Redlock, request: Any, task: Any, envelope: Envelope) -> str:
    return message_place(
        redlock,
        task_id=request.id or "",
        name=task.name,
        retries=request.retries or 0,
        nesting=request.replaced_task_nesting or 0,
        nonce=envelope.nonce,
    )


def _with_fitting_reservation(claim: Claim) -> Claim:
    reservation = claim.envelope.reservation
    if reservation is None or set(reservation.keys) == set(claim.published):
        return claim
    logger.warning(
        "Task %s[%s] was sent with a lock on %s, but its lock_key and lock_mode come to %s here; "
        "the former is given up. Let publishers and workers run the same code.",
        claim.task.name,
        claim.request.id,
        ", ".join(reservation.keys),
        ", ".join(claim.published or claim.places),
    )
    claim.redlock.cancel(reservation, wait=True)
    return replace(claim, envelope=replace(claim.envelope, reservation=None))
