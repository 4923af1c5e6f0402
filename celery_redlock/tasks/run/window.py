"""
How long a key is still kept for its window (`until_expired`), by the clocks of the nodes.

Publisher and worker have clocks of their own, which may disagree by minutes. So no moment of a
message is compared with this host's time where that can be avoided: the nodes know how long the
reservation has left, and the message knows how much longer than that the window lasts, because both
of its moments were read from one clock.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from celery_redlock.core import Reservation
from celery_redlock.errors import QuorumUnavailable
from celery_redlock.tasks.message.expiry import lifetime
from celery_redlock.tasks.message.owner_label import Role, parse_owner

if TYPE_CHECKING:
    from celery_redlock.tasks.run.lock_request import LockRequest

__all__ = ["with_window_end"]

#: A publisher lengthens a reservation when its message is out, and a worker may be faster.
#: First pause before it is looked at again, in seconds.
FIRST_RECHECK = 0.002


def with_window_end(lock_request: LockRequest) -> LockRequest:
    """
    Return a claim that counts what is left of its window on this process's own clock.

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
            # Not lengthened yet, or nearly over: in between the publisher's clock decides.
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

    It is not where the publisher may not have lengthened it yet.

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
