"""
Keeping every task of an app from running a message twice (`redlock_dedupe`).
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps, signals

from celery_redlock.tasks.config.settings import read_settings
from celery_redlock.tasks.message.envelope import HEADER, Envelope, fresh_nonce
from celery_redlock.tasks.patterns import adopt, trace_anew
from celery_redlock.tasks.task import RedlockTask, plan_lock

__all__ = ["NewTasksStep", "add_nonce", "mark_publishes", "protect_tasks"]


def protect_tasks(app: Any) -> None:
    """
    Have every registered task take the mark of its message, if the app wants that. Idempotent.

    Celery's own tasks, too: a chord's unlocking that runs twice calls its body twice.
    """
    if not read_settings(app).dedupe:
        return
    for task in list(app.tasks.values()):
        if not isinstance(task, RedlockTask):
            adopt(task, app, redlock_dedupe_only=True)
        elif task.redlock_plan is None or not task.redlock_plan.dedupe:
            # Bound before the setting was there.
            plan_lock(type(task), app)
            trace_anew(task, app)


def mark_publishes(app: Any) -> None:
    """Let messages tell which publish they come from, if the app wants that. Idempotent."""
    if read_settings(app).dedupe:
        signals.before_task_publish.connect(
            add_nonce, weak=False, dispatch_uid="celery_redlock.before_task_publish"
        )


def add_nonce(headers: Any = None, **_: Any) -> None:
    """Tell a message from others with its id, unless it tells already."""
    # One id may be published twice on purpose. A message that was put back keeps its nonce.
    if isinstance(headers, dict) and HEADER not in headers:
        headers[HEADER] = Envelope(nonce=fresh_nonce()).write()


class NewTasksStep(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery is untyped
    """Protects the tasks that were registered since; the consumer learns of them as it starts."""

    name = "celery-redlock tasks"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, parent: Any) -> None:
        """Protect what the consumer has found."""
        protect_tasks(parent.app)
