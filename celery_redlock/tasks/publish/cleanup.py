"""
Messages that end before any body could take over their lock.

These signals come in the worker's main process, which holds no lock itself. All it may do is to
take away what the message brought with it; once a body has taken that over, this changes nothing,
because the owner is another one then.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from typing import Any

from billiard.exceptions import WorkerLostError
from celery import signals
from celery.utils.log import get_logger

from celery_redlock.core import Redlock, Reservation
from celery_redlock.tasks.config.client import redlock_for
from celery_redlock.tasks.message.envelope import HEADER, Envelope
from celery_redlock.tasks.message.owner_label import Role, parse_owner
from celery_redlock.tasks.message.withdrawal import withdraw

__all__ = ["connect_cleanup", "free_at_revocation"]

#: Seconds for which it is remembered at least that a message was dropped.
SHORTEST = 1.0

logger = get_logger(__name__)


def connect_cleanup() -> None:
    """
    Connect the handlers. Idempotent.

    Also where no task of the worker is unique: it may get a message for one that it does not know.
    """
    handlers = {
        signals.task_revoked: _revoked,
        signals.task_unknown: _undeliverable,
        signals.task_rejected: _undeliverable,
        signals.task_failure: _failed,
    }
    for signal, handler in handlers.items():
        signal.connect(handler, weak=False, dispatch_uid=f"celery_redlock.{signal.name}.cleanup")


def free_at_revocation() -> None:
    """
    Have this worker free the lock of a message when it is told that the message is revoked.

    Without it the lock stands until the message's time comes, which may be hours for one with a
    countdown. Idempotent.
    """
    # Only a worker is to load these.
    from celery.worker import state as worker_state
    from celery.worker.control import Panel

    revoke = Panel.data["revoke"]
    if getattr(revoke, "celery_redlock", False):
        return

    @wraps(revoke)
    def revoke_and_free(state: Any, task_id: Any, *args: Any, **kwargs: Any) -> Any:
        answer = revoke(state, task_id, *args, **kwargs)
        for revoked in {task_id} if isinstance(task_id, str) else set(task_id or ()):
            request = worker_state.requests.get(revoked)
            if request is not None:
                _cancel(request.app, _header(request))
        return answer

    revoke_and_free.celery_redlock = True  # type: ignore[attr-defined]  # marks it as ours
    Panel.data["revoke"] = revoke_and_free


def _revoked(sender: Any = None, request: Any = None, **_: Any) -> None:
    """Revoked before its start, or expired; a task that was terminated has its lock adopted."""
    _cancel(getattr(sender, "app", None), _header(request))


def _failed(sender: Any = None, exception: Any = None, **_: Any) -> None:
    """Its process was lost; if that was before the body began, nobody else has its lock."""
    if isinstance(exception, WorkerLostError):
        _cancel(getattr(sender, "app", None), _header(getattr(sender, "request", None)))


def _undeliverable(sender: Any = None, message: Any = None, **_: Any) -> None:
    """Of an unknown task, or malformed."""
    headers = getattr(message, "headers", None)
    _cancel(getattr(sender, "app", None), headers.get(HEADER) if headers else None)


def _header(request: Any) -> Any:
    # A request's attributes are its message's headers.
    return getattr(request, HEADER, None) or (getattr(request, "headers", None) or {}).get(HEADER)


def _cancel(app: Any, header: Any) -> None:
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
            # Also where the mark was not set: only the task before it can need that.
            redlock.reservations.cancel(reservation)
    except Exception as exc:
        logger.warning(
            "The lock of a message that never ran is left to end by itself (%.200s): %r",
            ", ".join(reservation.node_keys),
            exc,
        )


def _mark_as_dropped(redlock: Redlock, reservation: Reservation) -> None:
    """Keep the task before this message, which may still run, from handing on its lock."""
    owner = parse_owner(reservation.owner)
    if owner is not None:
        life = max(SHORTEST, reservation.left_ms(redlock.transport.wall_us()) / 1000)
        withdraw(redlock, owner, Role.REVOKED, by=owner.task_id, marker_ttl=life)
