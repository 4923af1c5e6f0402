"""
Clearing what nodes have of a message that never runs: its reservation, its places in wait queues.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_redlock._log import event_logger
from celery_redlock.core import Client, Reservation
from celery_redlock.protocol.keys import QUORUM
from celery_redlock.tasks.border import AppLike
from celery_redlock.tasks.config.client import client_for
from celery_redlock.tasks.message.envelope import HEADER, Envelope
from celery_redlock.tasks.message.owner_label import parse_owner
from celery_redlock.tasks.message.priority import rank_of
from celery_redlock.tasks.message.withdrawal import withdraw
from celery_redlock.tasks.rules.facts import Role

logger = event_logger(__name__)

#: Shortest TTL of the marker of a dropped message, in seconds.
SHORTEST = 1.0


def cancel_reservation(app: AppLike | None, header: Any, role: Role = Role.REVOKED) -> None:
    """
    Cancel the reservation in a message's header, if no body has taken it over. Never raises.

    Args:
        app: the app of its task.
        header: its header `redlock`.
        role: of its marker, by which duplicates know whether its work is done.
    """
    if app is None or not isinstance(header, Mapping):
        return
    envelope = Envelope.read({HEADER: header})
    reservation = envelope.reservation
    if reservation is None:
        return
    try:
        client = client_for(app)
        try:
            if envelope.handovers:
                _mark_as_dropped(client, reservation, role)
        finally:
            # Cancelled even without the marker, which only the task before this message needs.
            client.cancel(reservation)
    except Exception as exc:
        logger.warning(
            "unused-lock-left",
            "The lock of a message that never ran (%(keys).200s) stays held until it expires: "
            "%(error)r",
            keys=", ".join(reservation.node_keys),
            error=exc,
        )


def forget_waiter(app: AppLike | None, header: Any, request: Any) -> None:
    """
    Have nodes forget a message that was requeued to wait for its keys. Never raises.

    Args:
        app: the app of its task.
        header: its header `redlock`.
        request: its request, in the worker's main process or in that of its body.
    """
    envelope = Envelope.read({HEADER: header})
    keys = [key for key in envelope.waits_for if key != QUORUM]
    if app is None or not keys:
        return
    try:
        waiter = envelope.waiter(request.id, rank_of(app, request.delivery_info))
        client_for(app).forget_waiter(keys, waiter)
    except Exception as exc:
        logger.warning(
            "waiting-message-not-forgotten",
            "A message that ended while it waited (%(keys).200s) may be woken instead of "
            "others: %(error)r",
            keys=", ".join(keys),
            error=exc,
        )


def _mark_as_dropped(client: Client, reservation: Reservation, role: Role) -> None:
    """Keep the task before this message, which may still run, from handing over its lock."""
    owner = parse_owner(reservation.owner)
    if owner is not None:
        life = max(SHORTEST, reservation.left_ms(client.transport.wall_us()) / 1000)
        withdraw(client, owner, role, by=owner.task_id, marker_ttl=life)
