"""
Cancelling the reservation of a message that ends before any body could take it over.

Celery sends these signals in the worker's main process, which holds no locks. Once a body has taken
the reservation over, cancelling it has no effect, because the owner value is another one.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from billiard.exceptions import WorkerLostError
from celery import signals

from celery_redlock.tasks.message.cancellation import cancel_reservation
from celery_redlock.tasks.message.envelope import HEADER

__all__ = ["connect_cleanup", "free_at_revocation"]


def connect_cleanup() -> None:
    """
    Connect the handlers. Idempotent.

    Also in workers without a unique task: they may receive a message for an unknown task.
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
    Make this worker free the lock of a message when it receives its revocation. Idempotent.

    Otherwise the lock stays taken until the message is due, which may be hours for a countdown.
    """
    # Imports that only a worker needs.
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
                cancel_reservation(request.app, _header(request))
        return answer

    revoke_and_free.celery_redlock = True  # type: ignore[attr-defined]  # marks it as ours
    Panel.data["revoke"] = revoke_and_free


def _revoked(sender: Any = None, request: Any = None, **_: Any) -> None:
    """Revoked before its start, or expired; a terminated task has taken its lock over."""
    cancel_reservation(getattr(sender, "app", None), _header(request))


def _failed(sender: Any = None, exception: Any = None, **_: Any) -> None:
    """Its process was lost. If the body had not begun, no process frees the lock."""
    if isinstance(exception, WorkerLostError):
        cancel_reservation(getattr(sender, "app", None), _header(getattr(sender, "request", None)))


def _undeliverable(sender: Any = None, message: Any = None, **_: Any) -> None:
    """Of an unknown task, or malformed."""
    headers = getattr(message, "headers", None)
    cancel_reservation(getattr(sender, "app", None), headers.get(HEADER) if headers else None)


def _header(request: Any) -> Any:
    # A request's attributes are its message's headers.
    return getattr(request, HEADER, None) or (getattr(request, "headers", None) or {}).get(HEADER)
