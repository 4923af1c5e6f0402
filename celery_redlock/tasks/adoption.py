"""
Settings that change tasks whose code you do not own: `redlock_tasks` and `redlock_dedupe`.

The first makes tasks lock that match a pattern; with the second, every task of an app runs each
message once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery import bootsteps, signals

from celery_redlock._log import event_logger
from celery_redlock.errors import ConfigurationError, RedlockError
from celery_redlock.tasks.border import AppLike, TaskLike, trace_anew
from celery_redlock.tasks.config.options import OPTIONS, PREFIX
from celery_redlock.tasks.config.settings import matches, read_settings
from celery_redlock.tasks.declarations import without_lock
from celery_redlock.tasks.message.envelope import HEADER, Envelope, fresh_nonce
from celery_redlock.tasks.refusals import has_own_strategy
from celery_redlock.tasks.task import RedlockTask, plan_lock

logger = event_logger(__name__)

#: Log events with the names of the tasks that they were about. Pool children inherit the set.
_warned: set[tuple[str, str]] = set()


def lock_matching_tasks(app: AppLike) -> None:
    """
    Make every registered task that matches a pattern lock. Idempotent.

    Raises:
        ConfigurationError: some tasks cannot lock; the message names each. All others lock.
    """
    settings = read_settings(app)
    refused: dict[str, RedlockError] = {}
    for task in list(app.tasks.values()) if settings.tasks else ():
        if settings.options_for(task.name) and not isinstance(task, RedlockTask):
            try:
                adopt(task, app)
            except RedlockError as error:
                refused[task.name] = error
    if refused:
        reasons = "; ".join(str(refused[name]).rstrip(".") for name in sorted(refused))
        raise ConfigurationError(f"{reasons}. redlock_tasks {without_lock(sorted(refused))}")


def idle_patterns(app: AppLike) -> list[str]:
    """Return the patterns that match no registered task."""
    patterns = read_settings(app).tasks
    return [
        pattern for pattern in patterns if not any(matches(pattern, name) for name in app.tasks)
    ]


def warn_of_idle_options(tasks: Iterable[Any]) -> None:
    """Warn of tasks that have lock options and do not lock, each once in a process."""
    for task in tasks:
        given = [PREFIX + option for option in OPTIONS if hasattr(task, PREFIX + option)]
        warned = ("lock-option-without-redlock-task", task.name)
        if given and not isinstance(task, RedlockTask) and warned not in _warned:
            _warned.add(warned)
            logger.warning(
                "lock-option-without-redlock-task",
                "Task %(task)r has %(options)s, but is not a RedlockTask, so it does not lock; "
                "give it base=RedlockTask.",
                task=task.name,
                options=", ".join(given),
            )


def adopt(task: TaskLike, app: AppLike, **attributes: Any) -> None:
    """Change a task's class to a subclass that locks and otherwise behaves as before."""
    cls = type(task)
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    locking: Any = type(cls.__name__, (cls, RedlockTask), {**names, **attributes})
    # First, because it may raise: then the task is unchanged, and the next call raises again.
    locking.bind(app)
    task.__class__ = locking
    trace_anew(task, app)


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
    warned = ("task-not-deduplicated", task.name)
    if warned not in _warned:
        _warned.add(warned)
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
