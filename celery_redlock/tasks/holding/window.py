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
from celery_redlock.tasks.messages.due import lifetime
from celery_redlock.tasks.messages.owners import Role, read_owner

if TYPE_CHECKING:
    from celery_redlock.tasks.holding.arrival import Claim

__all__ = ["count_window"]

#: A publisher lengthens a reservation when its message is out, and a worker may be faster.
#: First pause before it is looked at again, in seconds.
FIRST_LOOK_AGAIN = 0.002


def count_window(claim: Claim) -> Claim:
    """
    Return a claim that counts what is left of its window on this process's own clock.

    Guarantee: never longer than `lock_window` from here. Independent of the publisher's clock where
    the reservation still stands, or is about to be handed on by an earlier part of the task. Limit:
    where it does not (its worker was lost, nodes do not answer), the publisher's clock is compared
    with this host's.
    """
    window, envelope = claim.options.window, claim.envelope
    if window is None:
        return claim
    reservation, until = envelope.reservation, envelope.window_until
    if until is None or (reservation is None and not claim.goes_on):
        # Nobody had the key for this message before.
        return _ending_in(claim, window)
    now = time.time()
    least, most = 0.0, window
    if reservation is not None:
        beyond = until - reservation.expires_at
        life, surely = _life_of(claim, reservation, window - beyond)
        now = time.time()
        if life is not None:
            # Not lengthened yet, or nearly over: in between the publisher's clock decides.
            least = life + beyond
            most = least if surely else window - (claim.options.publish_grace - life)
            # From here on its moments are those of this host's clock.
            reservation = replace(reservation, expires_at=now + life)
    left = max(0.0, min(max(until - now, least), most, window))
    envelope = replace(envelope, reservation=reservation, window_until=now + left)
    return _ending_in(replace(claim, envelope=envelope), left)


def _ending_in(claim: Claim, seconds: float) -> Claim:
    return replace(claim, window_ends=claim.redlock.transport.now() + seconds)


def _life_of(claim: Claim, reservation: Reservation, whole: float) -> tuple[float | None, bool]:
    """
    Return how long a reservation has left, and whether that is sure.

    It is not where the publisher may not have lengthened it yet.

    Args:
        claim: of the request.
        reservation: what its message brought.
        whole: how long the reservation lasts from when the message is due, or longer.
    """
    transport, grace = claim.redlock.transport, claim.options.publish_grace
    give_up_at = transport.now() + claim.redlock.node_timeout
    pause = FIRST_LOOK_AGAIN
    while True:
        life = _look(claim, reservation)
        if life is None or life > grace or whole <= grace:
            return life, True
        if transport.now() + pause > give_up_at:
            return life, False
        transport.sleep(pause)
        pause *= 2


def _look(claim: Claim, reservation: Reservation) -> float | None:
    """Return how long a reservation has left on the nodes; None where it does not stand there."""
    try:
        held = claim.redlock.reservations.inspect(claim.published)
    except QuorumUnavailable:
        return None
    lives = [it.expires_in for it in held if it is not None and it.owner == reservation.owner]
    if lives:
        return max(0.0, *lives)
    holders = [read_owner(it.owner) for it in held if it is not None]
    if claim.goes_on and any(
        holder is not None and holder.role is Role.RUNNING and holder.is_of(claim.request.id)
        for holder in holders
    ):
        # It is handed over in a moment, and lives from then on.
        return lifetime(claim.options, handed_on=True)
    return None
