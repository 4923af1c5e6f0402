"""
Leaving word on the nodes that a message is not to run any more.
"""

from __future__ import annotations

import time
from typing import Any

from celery.utils.log import get_logger

from celery_redlock.core import Redlock, Reservation
from celery_redlock.errors import LockContended
from celery_redlock.tasks.message.node_keys import dedupe_key_of
from celery_redlock.tasks.message.owner_label import Role, TaskOwner, label_for, parse_owner

__all__ = ["revoke_in_workers", "withdraw"]

logger = get_logger(__name__)

#: How long it is tried, in seconds, while contenders share the nodes.
RETRY_FOR = 1.0


def withdraw(
    redlock: Redlock, holder: TaskOwner, role: Role, *, by: str, marker_ttl: float
) -> Reservation | None:
    """
    Set the mark of a message that waits, so that the worker that gets it ends it.

    Args:
        redlock: the client.
        holder: the message's owner value.
        role: `Role.REPLACED` or `Role.REVOKED`; `Role.QUEUED` has the worker put the message back.
        by: id of the task that replaces it, or its own.
        remembered_for: seconds for which the mark stands; a message that arrives later runs.

    Returns:
        The mark; None where the message's body has begun, or the message has no mark.

    Raises:
        LockContended: it stayed undecided (`split`).
        QuorumUnavailable: too few nodes answered.
    """
    if holder.marker is None:
        return None
    node_key = dedupe_key_of(holder.marker)
    try:
        return redlock.reservations.reserve(
            (node_key,),
            ttl=marker_ttl,
            grace=marker_ttl,
            label=label_for(role, by),
            retry_for=RETRY_FOR,
        ).reservation
    except LockContended as error:
        if error.split:
            raise
        other = parse_owner(error.holder)
        if other is None or other.role is not role or not other.is_of(by):
            return None
        # Done before, by somebody who may not have come to the rest.
        until = time.time() + (error.expires_in or 0.0)
        return Reservation(node_keys=(node_key,), owner=error.holder or "", expires_at=until)


def revoke_in_workers(app: Any, task_id: str) -> None:
    """Have the workers drop a message that was withdrawn. Never raises: its mark ends it, too."""
    try:
        app.control.revoke(task_id)
    except Exception as exc:
        logger.warning("Task %s could not be revoked: %r", task_id, exc)
