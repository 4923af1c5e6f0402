"""
Build the lock request of a message: what it brings, checked and made fit for this host.

A window (`until_expired`) is counted by the clocks of the nodes. The clocks of publisher and worker
may differ by minutes, so this module compares no moment of a message with this host's time where it
can avoid that: the nodes know how long the reservation has left, and the message knows how much
longer than that the window lasts, because the publisher read both moments from one clock.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from celery.utils.log import get_logger

from celery_redlock.core import Redlock, Reservation
from celery_redlock.errors import LockKeyError, QuorumUnavailable
from celery_redlock.tasks.config.client import redlock_for
from celery_redlock.tasks.config.plan import LockPlan
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.message.expiry import lifetime
from celery_redlock.tasks.message.header_limits import with_bounded_lifetime, within_bounds
from celery_redlock.tasks.message.node_keys import dedupe_key_for
from celery_redlock.tasks.message.owner_label import Role, parse_owner
from celery_redlock.tasks.message.periodic import overlap_of, runs_unlocked, tick_of
from celery_redlock.tasks.run.lock_request import LockRequest

__all__ = ["lock_request_for"]

logger = get_logger(__name__)

#: A publisher extends a reservation once its message is out, and a worker may be faster: first
#: pause before this worker reads the reservation again, in seconds.
FIRST_RECHECK = 0.002


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
    lock_request = _with_window_end(_with_fitting_reservation(lock_request))
    return replace(
        lock_request, envelope=with_bounded_lifetime(lock_request.envelope, request, plan.options)
    )


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
    if reservation is None or set(reservation.node_keys) == set(lock_request.publish_keys):
        return lock_request
    if lock_request.stop_request_keys and set(reservation.node_keys) <= set(
        lock_request.stop_request_keys
    ):
        return lock_request  # it has asked an older run to stop, and is the next
    logger.warning(
        "Task %s[%s] was sent with a lock on %.200s, but its lock_key and lock_mode come to %s "
        "here; "
        "the former is given up. Let publishers and workers run the same code.",
        lock_request.task.name,
        lock_request.request.id,
        ", ".join(reservation.node_keys),
        ", ".join(lock_request.publish_keys or lock_request.node_keys),
    )
    lock_request.redlock.reservations.cancel(reservation, wait=True)
    return replace(lock_request, envelope=replace(lock_request.envelope, reservation=None))


def _with_window_end(lock_request: LockRequest) -> LockRequest:
    """
    Return a request that counts what is left of its window on this process's own clock.

    Guarantee: never longer than `lock_window` from here. Independent of the publisher's clock where
    the reservation is still stored, or an earlier part of the task is about to hand it over. Limit:
    where it does not (its worker was lost, nodes do not answer), the publisher's clock is compared
    with this host's.
    """
    window, envelope = lock_request.options.window, lock_request.envelope
    if window is None:
        return lock_request
    reservation, until = envelope.reservation, envelope.window_until
    if until is None or (reservation is None and not lock_request.is_continuation):
        # Nobody had the key for this message before.
        return _ending_in(lock_request, window)
    now = time.time()
    least, most = 0.0, window
    if reservation is not None:
        beyond = until - reservation.expires_at
        life, surely = _remaining_of(lock_request, reservation, window - beyond)
        now = time.time()
        if life is not None:
            # Not extended yet, or nearly expired: in between the publisher's clock decides.
            least = life + beyond
            most = least if surely else window - (lock_request.options.publish_grace - life)
            # From here on its moments are those of this host's clock.
            reservation = replace(reservation, expires_at=now + life)
    left = max(0.0, min(max(until - now, least), most, window))
    envelope = replace(envelope, reservation=reservation, window_until=now + left)
    return _ending_in(replace(lock_request, envelope=envelope), left)


def _ending_in(lock_request: LockRequest, seconds: float) -> LockRequest:
    return replace(lock_request, window_ends=lock_request.redlock.transport.now() + seconds)


def _remaining_of(
    lock_request: LockRequest, reservation: Reservation, whole: float
) -> tuple[float | None, bool]:
    """
    Return how long a reservation has left, and whether that is sure.

    It is not sure while the publisher may not have extended the reservation yet.

    Args:
        lock_request: of the request.
        reservation: what its message brought.
        whole: how long the reservation lasts from when the message is due, or longer.
    """
    transport, grace = lock_request.redlock.transport, lock_request.options.publish_grace
    give_up_at = transport.now() + lock_request.redlock.settings.node_timeout
    pause = FIRST_RECHECK
    while True:
        life = _read_remaining(lock_request, reservation)
        if life is None or life > grace or whole <= grace:
            return life, True
        if transport.now() + pause > give_up_at:
            return life, False
        transport.sleep(pause)
        pause *= 2


def _read_remaining(lock_request: LockRequest, reservation: Reservation) -> float | None:
    """Return how long a reservation still lasts on the nodes; None where it is not stored."""
    try:
        held = lock_request.redlock.reservations.inspect(lock_request.publish_keys)
    except QuorumUnavailable:
        return None
    lives = [it.expires_in for it in held if it is not None and it.owner == reservation.owner]
    if lives:
        return max(0.0, *lives)
    holders = [parse_owner(it.owner) for it in held if it is not None]
    if lock_request.is_continuation and any(
        holder is not None and holder.role is Role.RUNNING and holder.is_of(lock_request.request.id)
        for holder in holders
    ):
        # It is handed over in a moment, and lives from then on.
        return lifetime(lock_request.options, continuation=True)
    return None
