"""
`redlock_tasks`: locks for tasks whose code you do not own.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from celery.app.trace import build_tracer

from celery_redlock.tasks.config.settings import read_settings
from celery_redlock.tasks.task import RedlockTask

__all__ = ["adopt", "idle_patterns", "lock_matching_tasks", "trace_anew"]

BUILT_IN = "celery."


def lock_matching_tasks(app: Any) -> None:
    """
    Make every registered task that matches a pattern lock. Idempotent.

    Only a pattern that begins with `celery.` matches Celery's own tasks.
    """
    patterns = read_settings(app).tasks
    for task in list(app.tasks.values()) if patterns else ():
        named = any(_matches(pattern, task.name) for pattern in patterns)
        if named and not isinstance(task, RedlockTask):
            adopt(task, app)


def idle_patterns(app: Any) -> list[str]:
    """Return the patterns that match no registered task."""
    return [
        pattern
        for pattern in read_settings(app).tasks
        if not any(_matches(pattern, name) for name in app.tasks)
    ]


def _matches(pattern: str, name: str) -> bool:
    if name.startswith(BUILT_IN) and not pattern.startswith(BUILT_IN):
        return False
    return fnmatchcase(name, pattern)


def adopt(task: Any, app: Any, **attributes: Any) -> None:
    """Change a task's class to a subclass that locks and otherwise behaves as before."""
    cls = type(task)
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    locking: Any = type(cls.__name__, (cls, RedlockTask), {**names, **attributes})
    # First, because it may raise: then the task is unchanged, and the next call raises again.
    locking.bind(app)
    task.__class__ = locking
    trace_anew(task, app)


def trace_anew(task: Any, app: Any) -> None:
    """Rebuild the task's tracer if Celery has built one: the old one would skip the lock."""
    if task.__trace__ is not None:
        task.__trace__ = build_tracer(task.name, task, app.loader, app=app)
