"""
`redlock_tasks`: locks for tasks whose code you do not own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery_redlock._log import event_logger
from celery_redlock.errors import ConfigurationError, RedlockError
from celery_redlock.tasks.border import AppLike, TaskLike, trace_anew
from celery_redlock.tasks.config.options import OPTIONS, PREFIX
from celery_redlock.tasks.config.settings import matches, read_settings
from celery_redlock.tasks.declarations import without_lock
from celery_redlock.tasks.task import RedlockTask

logger = event_logger(__name__)

#: Names of the tasks that were warned of. Pool children inherit the set.
_warned: set[str] = set()


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
        if given and not isinstance(task, RedlockTask) and task.name not in _warned:
            _warned.add(task.name)
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
