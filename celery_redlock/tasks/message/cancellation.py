"""
Cancelling the reservation in a message's header.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_redlock._log import event_logger
from celery_redlock.core import Redlock, Reservation
from celery_redlock.tasks.config.client import redlock_for
from celery_redlock.tasks.message.envelope import HEADER, Envelope
from celery_redlock.tasks.message.owner_label import Role, parse_owner
from celery_redlock.tasks.message.withdrawal import withdraw

__all__ = ["cancel_reservation"]

logger = event_logger(__name__)

#: Shortest TTL of the marker of a dropped message, in seconds.
SHORTEST = 1.0


def cancel_reservation(app: Any, header: Any) -> None:
    """Cancel the reservation in a message's header, if no body has taken it over. Never raises."""
    if app is None or not isinstance(header, Mapping):
        return
    envelope = Envelope.read({HEADER: header})
    reservation = envelope.reservation
    if reservation is None:
        return
    try:
        redlock = redlock_for(app)
        try:
            if envelope.handovers:
                _mark_as_dropped(redlock, reservation)
        finally:
            # Even if the marker was not set: only the task before this message needs it.
            redlock.reservations.cancel(reservation)
    except Exception as exc:
        logger.warning(
            "unused-lock-left",
            "The lock of a message that never ran (%(keys).200s) stays taken until it expires: "
            "%(error)r",
            keys=", ".join(reservation.node_keys),
            error=exc,
        )


def _mark_as_dropped(redlock: Redlock, reservation: Reservation) -> None:
    """Keep the task before this message, which may still run, from handing over its lock."""
    owner = parse_owner(reservation.owner)
    if owner is not None:
        life = max(SHORTEST, reservation.left_ms(redlock.transport.wall_us()) / 1000)
        withdraw(redlock, owner, Role.REVOKED, by=owner.task_id, marker_ttl=life)
