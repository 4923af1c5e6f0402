"""
Handing a running task's lock to the message that continues it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from celery_redlock.core import Reservation
from celery_redlock.core.lease import holding_of
from celery_redlock.protocol.keys import Key, given_back
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.message.owner_label import label_for
from celery_redlock.tasks.message.tick import Tick
from celery_redlock.tasks.rules.ending import Move
from celery_redlock.tasks.rules.facts import Role
from celery_redlock.tasks.run.running_lock import RunningLock, current_running_lock


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """
    A lock on its way from a running body to a message.

    Attributes:
        envelope: the header that the message is to carry.
        running_lock: the lock that the body holds.
    """

    envelope: Envelope
    running_lock: RunningLock

    def sent(self) -> None:
        """
        Note that the message is out: it gets the lock once the body's result is stored.

        If it arrives before that, it finds the lock held by its own task, and waits. If the key has
        a limit, it may find another slot free and begin there.
        """
        self.running_lock.handover_reservation = self.envelope.reservation
        self.running_lock.move(Move.HAND_OVER)


def handover_for(
    name: str,
    task_id: str,
    keys: tuple[Key, ...],
    expires_at: float,
    *,
    nonce: str,
    marker: str,
) -> Handover | None:
    """
    Return the hand-over of the running body's lock to a message that is about to be sent.

    None if the message does not continue the task that runs here, or needs another lock than that
    task has.

    Args:
        name: the task that is sent.
        task_id: the message's task id.
        keys: the keys of its lock.
        expires_at: when the lock expires if no worker takes it over, in seconds since the epoch.
        nonce: distinguishes the message from others with its id.
        marker: digest of the message's dedupe marker.
    """
    running_lock = _continued_by(task_id)
    lease = None if running_lock is None else running_lock.body_lease
    if running_lock is None or lease is None:
        return None
    lock_request, kept = running_lock.lock_request, given_back(keys)
    if not kept or set(kept) != set(lock_request.transferable_keys):
        return None
    due_us = None if lock_request.tick is None else lock_request.tick.due_us
    label = label_for(
        Role.QUEUED,
        task_id,
        due_us=due_us,
        tick_id=lock_request.tick_id,
        marker=marker,
        task=name,
        ignored=lock_request.ignores_result,
    )
    owner = lock_request.client.new_owner_value(label)
    envelope = Envelope(
        nonce=nonce,
        reservation=Reservation(
            node_keys=holding_of(lease).names_of(kept), owner=owner, expires_at=expires_at
        ),
        handovers=lock_request.envelope.handovers + 1,
        window_until=lock_request.window_until,
    )
    return Handover(envelope=envelope, running_lock=running_lock)


def inherited(task_id: str | None) -> tuple[Tick | None, float | None]:
    """
    Return the tick of the running body and when its call was sent, for a message that continues it.

    Both are None if a message with this id does not continue the task that runs here.
    """
    running_lock = _continued_by(task_id)
    if running_lock is None:
        return None, None
    lock_request = running_lock.lock_request
    return lock_request.tick, lock_request.age_us / 1_000_000


def _continued_by(task_id: str | None) -> RunningLock | None:
    """Return what the running body holds, if a message with this id continues its task."""
    running_lock = current_running_lock()
    if running_lock is None or running_lock.body.pid != os.getpid():
        return None  # a forked child has nothing to hand on
    if (
        running_lock.request.is_eager
        or not running_lock.body.running
        or running_lock.request.id != task_id
    ):
        return None
    return running_lock
