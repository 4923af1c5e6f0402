"""
Cancelling the reservation of a message that ends before any body could take it over.

Celery sends these signals in the worker's main process, which holds no locks. Once a body has taken
the reservation over, cancelling it has no effect, because the owner value is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from inspect import signature
from typing import Any

from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery import bootsteps, signals
from celery.utils.functional import maybe_list

from celery_redlock.tasks.message.cancellation import cancel_reservation
from celery_redlock.tasks.message.envelope import HEADER
from celery_redlock.tasks.run.kept_keys import cancel_for_steps

__all__ = ["CleanupStep", "connect_cleanup"]


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


class CleanupStep(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery is untyped
    """
    Frees the locks of messages whose end Celery reports with no signal, or later.

    Celery ends a message that it cannot decode with no signal, and a revoked one only when it is
    due or a process is free, which may be in hours.
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

    for name, find in (
        ("revoke", _with_ids),
        ("terminate", _with_ids),
        ("revoke_by_stamped_headers", _with_stamps),
    ):
        command = Panel.data[name]
        if not getattr(command, "celery_redlock", False):
            Panel.data[name] = _and_free(command, find)


def _and_free(command: Any, find: Callable[[Any, Mapping[str, Any]], list[Any]]) -> Any:
    """Return a remote control command that also frees the locks of the messages it revokes."""
    from celery.worker import state as worker_state

    parameters = signature(command)

    @wraps(command)
    def revoke_and_free(*args: Any, **kwargs: Any) -> Any:
        answer = command(*args, **kwargs)
        given = parameters.bind(*args, **kwargs).arguments
        for request in find(given["state"].consumer, given):
            if request not in worker_state.active_requests:  # not in the hands of a pool process
                cancel_reservation(request.app, _header(request.request_dict))
        return answer

    revoke_and_free.celery_redlock = True  # type: ignore[attr-defined]  # marks it as ours
    return revoke_and_free


def _with_ids(consumer: Any, given: Mapping[str, Any]) -> list[Any]:
    from celery.worker import state as worker_state

    ids = set(maybe_list(given["task_id"]) or ())
    listed = filter(None, map(worker_state.requests.get, ids))
    return [*listed, *(request for request in _unlisted(consumer) if request.id in ids)]


def _with_stamps(consumer: Any, given: Mapping[str, Any]) -> list[Any]:
    from celery.worker import state as worker_state

    named = given["headers"]
    if not isinstance(named, Mapping):
        named = [word.partition("=")[0] for word in named]
    revoked = {name: maybe_list(worker_state.revoked_stamps.get(name, ())) for name in named}
    return [
        request
        for request in (*list(worker_state.requests.values()), *_unlisted(consumer))
        if any(
            stamp in revoked.get(name, ())
            for name, stamps in request.stamps.items()
            for stamp in maybe_list(stamps) or ()
        )
    ]


def _unlisted(consumer: Any) -> Iterator[Any]:
    """Yield the requests that wait in this worker, and that its list `requests` does not have."""
    from celery.worker import state as worker_state

    for bucket in filter(None, consumer.task_buckets.values()):  # for a rate limit of Celery's
        yield from (request for request, _ in list(bucket.contents))
    if not hasattr(worker_state, "scheduled_requests"):  # Celery before 5.7: for their ETA
        for timer in list(consumer.timer.schedule._queue):
            for first in getattr(timer.entry, "args", ())[:1]:
                if hasattr(first, "request_dict"):
                    yield first


def _revoked(sender: Any = None, request: Any = None, **_: Any) -> None:
    """Revoked before its start, or expired; a terminated task has taken its lock over."""
    _cancel_all(sender, request)


def _failed(sender: Any = None, exception: Any = None, **_: Any) -> None:
    """Its process was lost or killed. If the body had not begun, no process frees the lock."""
    if isinstance(exception, WorkerLostError | TimeLimitExceeded):
        _cancel_all(sender, getattr(sender, "request", None))


def _cancel_all(task: Any, request: Any) -> None:
    """Cancel the reservation of a message, and those of the steps that would come after it."""
    app = getattr(task, "app", None)
    cancel_reservation(app, _header(request))
    if request is not None:
        cancel_for_steps(app, request)


def _undeliverable(sender: Any = None, message: Any = None, **_: Any) -> None:
    """Of an unknown task, or malformed."""
    headers = getattr(message, "headers", None)
    cancel_reservation(getattr(sender, "app", None), headers.get(HEADER) if headers else None)


def _header(request: Any) -> Any:
    """Return our header from a `Context`, or from the mapping of which a worker makes one."""
    if request is None:
        return None
    return request.get(HEADER) or (request.get("headers") or {}).get(HEADER)  # protocol 2 or 1
