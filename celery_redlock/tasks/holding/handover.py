"""
Handing a running task's lock to the message that continues it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from celery_redlock.core import Reservation
from celery_redlock.tasks.holding.hold import Hold, current_hold
from celery_redlock.tasks.messages.envelope import Envelope
from celery_redlock.tasks.messages.owners import Role, label_for
from celery_redlock.tasks.messages.tick import Tick

__all__ = ["Handover", "handed_on", "tick_handed_on"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """
    A lock on its way from a running body to a message.

    Attributes:
        envelope: what the message is to carry.
        hold: what the body holds.
    """

    envelope: Envelope
    hold: Hold

    def sent(self) -> None:
        """
        The message is out: it gets the lock when the body has ended and its result is stored.

        Until then it may well arrive; it finds the lock held by its own task, and waits.
        """
        self.hold.handed = self.envelope.reservation
        self.hold.continued = True


def handed_on(
    name: str,
    task_id: str,
    places: tuple[str, ...],
    expires_at: float,
    *,
    nonce: str,
    mark: str,
) -> Handover | None:
    """
    Return how the lock of the running body goes to a message that is about to be sent.

    None where the message does not continue the task that runs here, or needs another lock than
    that task has.

    Args:
        name: the task that is sent.
        task_id: the message's task id.
        places: where its lock stands on the nodes.
        expires_at: when that is to end if no worker takes it over, in seconds since the epoch.
        nonce: tells the message from others with its id.
        mark: digest of its mark.
    """
    hold = _continued_by(task_id)
    if hold is None or hold.shown is None:
        return None
    claim = hold.claim
    if not places or set(places) != set(claim.lasting):
        return None
    due_us = None if claim.tick is None else claim.tick.due_us
    label = label_for(Role.QUEUED, task_id, due_us=due_us, piece=claim.piece, mark=mark, task=name)
    owner = claim.redlock.reservations.new_owner_value(label)
    envelope = Envelope(
        nonce=nonce,
        reservation=Reservation(node_keys=places, owner=owner, expires_at=expires_at),
        hop=claim.envelope.hop + 1,
        window_until=claim.window_until,
    )
    return Handover(envelope=envelope, hold=hold)


def tick_handed_on(task_id: str | None) -> Tick | None:
    """Return the tick of the running body, if a message with this id continues its task."""
    hold = _continued_by(task_id)
    return None if hold is None else hold.claim.tick


def _continued_by(task_id: str | None) -> Hold | None:
    """Return what the running body holds, if a message with this id continues its task."""
    hold = current_hold()
    if hold is None or hold.body.pid != os.getpid():
        return None  # a forked child has nothing to hand on
    if hold.request.is_eager or not hold.body.running or hold.request.id != task_id:
        return None
    return hold
