"""
How Celery shows a run that ends without its body: as waiting or revoked, not as an error.

A message that waits could end its run with `Retry`. That calls `on_retry` and sends `task_retry`,
which integrations count as an error. So it ends with `Ignore`: Celery acknowledges the message and
does nothing else. This module does the rest of what a `Retry` does: it stores the state RETRY, and
sends the event `task-retried`.
"""

from __future__ import annotations

import logging
from typing import Any

from celery.app import trace
from celery.exceptions import Ignore
from kombu.utils.imports import symbol_by_name

from celery_redlock._log import event_logger
from celery_redlock.tasks.border import RequestLike, TaskLike

logger = event_logger(__name__)


class Requeued(Ignore):  # type: ignore[misc]  # Celery is untyped
    """
    Ends the run of a message that has been published again to wait for its lock.

    Attributes:
        reason: what it waits for.
        when: the seconds until it runs again, as in Celery's `Retry`.
    """

    def __init__(self, reason: str, when: float) -> None:
        super().__init__(reason, when)
        self.reason, self.when = reason, when

    def __str__(self) -> str:
        return f"requeued for up to {self.when:.1f} s: {self.reason}"

    @property
    def event(self) -> tuple[str, dict[str, Any]]:
        """The type and the fields of the event that Celery sends for the same end."""
        return "task-retried", {"exception": str(self), "traceback": ""}


class Withdrawn(Ignore):  # type: ignore[misc]  # Celery is untyped
    """Ends the run of a message that was revoked or replaced."""

    event = "task-revoked", {"terminated": False, "signum": None, "expired": False}


class Yielded(Ignore):  # type: ignore[misc]  # Celery is untyped
    """Ends the run of a delivery whose lock or outcome is another delivery's."""


def store_wait(task: TaskLike, request: RequestLike, error: Exception, *, ignored: bool) -> None:
    """
    Store the state RETRY, with the error as its result. A failure of the backend is only logged.

    Call it before the message is published again: the next run may store its result at once.
    """
    if ignored and not task.store_errors_even_if_ignored:
        return
    try:
        task.backend.mark_as_retry(request.id, error, request=request)
    except Exception as exc:
        logger.warning(
            "wait-not-stored",
            "Task %(task)s[%(task_id)s] waits for its lock, and its state RETRY could not be "
            "stored: %(error)r",
            task=task.name,
            task_id=request.id,
            error=exc,
        )


def announce_ends(task: TaskLike) -> None:
    """Have a worker send the events of runs that are requeued or withdrawn. Idempotent."""
    base = symbol_by_name(task.Request)
    if not issubclass(base, _AnnouncesEnds):
        task.Request = type(base.__name__, (_AnnouncesEnds, base), {})


class _AnnouncesEnds:
    """
    A request in the worker's main process, which alone knows whether monitors listen.

    Without these events, monitors would continue to show the task as started.
    """

    def on_failure(self: Any, exc_info: Any, *args: Any, **options: Any) -> Any:
        result = super().on_failure(exc_info, *args, **options)  # type: ignore[misc]  # Celery's
        # billiard has wrapped the error, unless that comes from another process.
        error = getattr(exc_info.exception, "exc", exc_info.exception)
        if isinstance(error, Requeued | Withdrawn):
            kind, fields = error.event
            self.send_event(kind, **fields)
        return result


def connect_log() -> None:
    """Keep Celery from logging a waiting message as ignored. Idempotent."""
    trace.logger.addFilter(_logs_no_requeue)


def _logs_no_requeue(record: logging.LogRecord) -> bool:
    end = getattr(record, "data", {})
    is_ignored = end.get("description") == trace.log_policy_ignore.description
    return not (is_ignored and str(end.get("exc")).startswith(f"{Requeued.__name__}("))
