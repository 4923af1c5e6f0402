"""
Cancelling the reservation of a message that ends before any body could take it over.

Celery sends these signals in the worker's main process, which holds no locks. Once a body has taken
the reservation over, cancelling it has no effect, because the owner value is another one.
"""

from __future__ import annotations

from contextlib import suppress
from functools import wraps
from typing import Any
from weakref import WeakSet

from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery import bootsteps, signals

from celery_redlock.tasks.border import ReceivedRequest, context_of, is_revoked
from celery_redlock.tasks.message.envelope import HEADER
from celery_redlock.tasks.message.withdrawal import cancel_reservation, forget_waiter
from celery_redlock.tasks.run.handover import cancel_for_steps

#: The messages that this worker has received, for as long as Celery keeps them.
_received: WeakSet[ReceivedRequest] = WeakSet()


def connect_cleanup() -> None:
    """
    Connect the handlers. Idempotent.

    A worker without a unique task needs them, too: it may receive a message of an unknown task.
    """
    handlers = {
        signals.task_received: _note,
        signals.task_revoked: _revoked,
        signals.task_unknown: _undeliverable,
        signals.task_rejected: _undeliverable,
        signals.task_failure: _failed,
    }
    for signal, handler in handlers.items():
        signal.connect(handler, weak=False, dispatch_uid=f"celery_redlock.{signal.name}.cleanup")


class CleanupStep(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery is untyped
    """
    Frees the locks of messages whose end Celery signals late or not at all.

    Celery sends no signal for a message that it cannot decode, and ends a revoked message only when
    it is due or a process is free, which may take hours.
    """

    name = "celery-redlock cleanup"

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        _follow_revocations()
        _follow_decode_errors(parent)


def _follow_decode_errors(consumer: Any) -> None:
    end = consumer.on_decode_error

    @wraps(end)
    def end_and_free(message: Any, exc: Any) -> None:
        end(message, exc)
        _undeliverable(consumer, message)

    consumer.on_decode_error = end_and_free


def _follow_revocations() -> None:
    # Imports that only a worker needs.
    from celery.worker.control import Panel

    for name in ("revoke", "terminate", "revoke_by_stamped_headers"):
        command = Panel.data[name]
        if not getattr(command, "celery_redlock", False):
            Panel.data[name] = _and_free(command)


def _and_free(command: Any) -> Any:
    """Return a remote control command that also frees the locks of the messages it revokes."""

    @wraps(command)
    def revoke_and_free(*args: Any, **kwargs: Any) -> Any:
        answer = command(*args, **kwargs)
        for request in list(_received):
            with suppress(Exception):  # garbage in one message must not keep the others' locks
                _free_if_revoked(request)
        return answer

    revoke_and_free.celery_redlock = True  # type: ignore[attr-defined]  # marks it as ours
    return revoke_and_free


def _note(request: ReceivedRequest, **_: Any) -> None:
    """
    Note a message that the worker has received, and free its locks if it is revoked by now.

    Celery has checked that, but only by id, and in a greenlet pool a revocation may come later.
    """
    _received.add(request)
    _free_if_revoked(request)
    if getattr(request.task, "redlock_plan", None) is not None:
        # Celery gives it to the pool process only to decode the arguments; see `send_again`.
        properties = request.request_dict.get("properties") or {}
        encoded = {**properties, "content_type": request.content_type}
        request.request_dict["properties"] = encoded


def _free_if_revoked(request: ReceivedRequest) -> None:
    """Free the locks of a revoked message, unless a pool process has it."""
    from celery.worker import state as worker_state

    if is_revoked(request) and request not in worker_state.active_requests:
        _received.discard(request)
        cancel_reservation(request.app, _header(request.request_dict))
        cancel_for_steps(request.app, context_of(request))
        forget_waiter(request.app, _header(request.request_dict), request)


def _revoked(sender: Any = None, request: Any = None, **_: Any) -> None:
    """Free the locks of a revoked or expired message; a terminated task has taken its lock over."""
    _cancel_all(sender, request)


def _failed(sender: Any = None, exception: Any = None, **_: Any) -> None:
    """Free the locks of a message whose process was lost or killed, perhaps before its body."""
    if isinstance(exception, WorkerLostError | TimeLimitExceeded):
        _cancel_all(sender, getattr(sender, "request", None))


def _cancel_all(task: Any, request: Any) -> None:
    """Free what a message and the steps that would follow it have on the nodes."""
    app = getattr(task, "app", None)
    cancel_reservation(app, _header(request))
    if request is not None:
        cancel_for_steps(app, request)
        forget_waiter(app, _header(request), request)


def _undeliverable(sender: Any = None, message: Any = None, **_: Any) -> None:
    """Free the lock of a message that is malformed, or of an unknown task."""
    headers = getattr(message, "headers", None)
    cancel_reservation(getattr(sender, "app", None), headers.get(HEADER) if headers else None)


def _header(request: Any) -> Any:
    """Return our header from a `Context`, or from the mapping from which a worker makes one."""
    if request is None:
        return None
    return request.get(HEADER) or (request.get("headers") or {}).get(HEADER)  # protocol 2 or 1
