"""
`redlock_dedupe`: every task of an app runs each message once.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps, signals

from celery_redlock._log import event_logger
from celery_redlock.tasks.border import AppLike, TaskLike, trace_anew
from celery_redlock.tasks.config.settings import read_settings
from celery_redlock.tasks.message.envelope import HEADER, Envelope, fresh_nonce
from celery_redlock.tasks.patterns import adopt
from celery_redlock.tasks.refusals import has_own_strategy
from celery_redlock.tasks.task import RedlockTask, plan_lock

logger = event_logger(__name__)

#: Names of the tasks that were warned of. Pool children inherit the set.
_warned: set[str] = set()


def protect_tasks(app: AppLike) -> None:
    """
    Give every registered task dedupe markers, if `redlock_dedupe` is on. Idempotent.

    This includes Celery's own: a chord's unlock task that runs twice sends the chord's body twice.
    """
    if not read_settings(app).dedupe:
        return
    for task in list(app.tasks.values()):
        if has_own_strategy(type(task)):
            _warn_of_strategy(task)
        elif not isinstance(task, RedlockTask):
            adopt(task, app, redlock_dedupe_only=True)
        elif task.redlock_plan is None or not task.redlock_plan.dedupe:
            # The task was bound before the setting was made.
            plan_lock(type(task), app)
            trace_anew(task, app)


def _warn_of_strategy(task: TaskLike) -> None:
    if task.name not in _warned:
        _warned.add(task.name)
        logger.warning(
            "task-not-deduplicated",
            "Task %(task)r has a class with its own Strategy, such as that of celery-batches, so "
            "redlock_dedupe has no effect on it: its body may run again for a message that the "
            "broker delivers again.",
            task=task.name,
        )


def mark_publishes(app: AppLike) -> None:
    """Set a nonce in each published message, if `redlock_dedupe` is on. Idempotent."""
    if read_settings(app).dedupe:
        signals.before_task_publish.connect(
            add_nonce, weak=False, dispatch_uid="celery_redlock.before_task_publish"
        )


def add_nonce(headers: Any = None, **_: Any) -> None:
    """Set a nonce in a message without our header."""
    # A program may publish one task id twice on purpose. A requeued message keeps its nonce.
    if isinstance(headers, dict) and HEADER not in headers:
        headers[HEADER] = Envelope(nonce=fresh_nonce()).write()


class NewTasksStep(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery is untyped
    """Protects tasks that were registered after `LockStep`, when the consumer starts."""

    name = "celery-redlock tasks"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, parent: Any) -> None:
        """Protect the tasks that the consumer has found."""
        protect_tasks(parent.app)
