"""
Withdrawing a queued message: its dedupe marker keeps it from running.
"""

from __future__ import annotations

from celery_redlock._log import event_logger
from celery_redlock.core import Client, Reservation
from celery_redlock.errors import LockContended, QuorumUnavailable
from celery_redlock.tasks.border import AppLike
from celery_redlock.tasks.message.in_words import in_words
from celery_redlock.tasks.message.node_keys import dedupe_key_of
from celery_redlock.tasks.message.owner_label import TaskOwner, label_for, parse_owner
from celery_redlock.tasks.rules.facts import Role

logger = event_logger(__name__)

#: How long setting the marker is retried, in seconds, while contenders share the nodes.
RETRY_FOR = 1.0


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
