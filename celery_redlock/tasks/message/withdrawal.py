"""
Withdrawing a queued message, and clearing what nodes have of a message that never runs.

The dedupe marker of a withdrawn message keeps it from running. Cleared are its reservation and its
places in wait queues.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_redlock._log import event_logger
from celery_redlock.core import Client, Reservation
from celery_redlock.errors import LockContended, QuorumUnavailable
from celery_redlock.protocol.keys import QUORUM
from celery_redlock.tasks.border import AppLike, ReceivedRequest, RequestLike
from celery_redlock.tasks.config.client import client_for
from celery_redlock.tasks.message.envelope import HEADER, Envelope
from celery_redlock.tasks.message.in_words import in_words
from celery_redlock.tasks.message.node_keys import dedupe_key_of
from celery_redlock.tasks.message.owner_label import TaskOwner, label_for, parse_owner
from celery_redlock.tasks.rules.facts import Role

logger = event_logger(__name__)

#: How long setting the marker is retried, in seconds, while contenders share the nodes.
RETRY_FOR = 1.0
#: Shortest TTL of the marker of a dropped message, in seconds.
SHORTEST = 1.0


def withdraw(
    client: Client, holder: TaskOwner, role: Role, *, by: str, marker_ttl: float
) -> Reservation | None:
    """
    Set the dedupe marker of a queued message, so that the worker that receives it ends it.

    Args:
        client: the app's client.
        holder: the message's owner value.
        role: `Role.REPLACED` or `Role.REVOKED`; with `Role.QUEUED` the worker requeues the message.
            `Role.FINISHED` if other messages have done its work.
        by: id of the replacing task, or of the message's own.
        marker_ttl: TTL of the marker in seconds; a message that arrives later runs.

    Returns:
        The marker; None if the message's body has begun, or the message has no marker.

    Raises:
        LockContended: contenders share the nodes (`split`).
        QuorumUnavailable: fewer nodes than a quorum replied.
    """
    if holder.marker is None:
        return None
    node_key = dedupe_key_of(holder.marker)
    try:
        return client.reserve(
            (node_key,),
            ttl=marker_ttl,
            grace=marker_ttl,
            label=label_for(role, by),
            retry_for=RETRY_FOR,
        ).reservation
    except (LockContended, QuorumUnavailable) as error:
        if isinstance(error, QuorumUnavailable) or error.split:
            raise in_words(error) from None
        other = parse_owner(error.holder)
        if other is None or other.role is not role or not other.is_of(by):
            return None
        # An earlier call has set the marker, and may not have completed the withdrawal.
        return Reservation.of_holder(error, (node_key,))


def revoke(client: Client, holder: TaskOwner, *, marker_ttl: float) -> bool:
    """
    Keep a queued message from running, whichever worker receives it; errors as `withdraw`.

    Args:
        client: the app's client.
        holder: the message's owner value.
        marker_ttl: TTL of the marker in seconds; a message that arrives later runs.

    Returns:
        False if its body has begun. True also if it has no marker, when nothing keeps it.
    """
    marker = withdraw(client, holder, Role.REVOKED, by=holder.task_id, marker_ttl=marker_ttl)
    return marker is not None or holder.marker is None


def revoke_in_workers(app: AppLike, task_id: str) -> None:
    """Send the revocation of a withdrawn message to the workers. Never raises."""
    try:
        app.control.revoke(task_id)
    except Exception as exc:
        logger.warning(
            "revoke-failed",
            "Task %(task_id)s could not be revoked: %(error)r",
            task_id=task_id,
            error=exc,
        )


def cancel_reservation(app: AppLike | None, header: Any, role: Role = Role.REVOKED) -> None:
    """
    Cancel the reservation in a message's header, if no body has taken it over. Never raises.

    Args:
        app: the app of its task.
        header: its header `redlock`.
        role: role of its marker: duplicates read from it whether the work is done.
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


def forget_waiter(app: AppLike | None, header: Any, request: RequestLike | ReceivedRequest) -> None:
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
        waiter = envelope.waiter(app, request)
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
