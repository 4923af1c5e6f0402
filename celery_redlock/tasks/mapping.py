"""
Messages that run a task once for each of several items: `map`, `starmap` and `chunks`.

Celery runs such a message as a task of its own, which calls ours as a function for each item: there
is no request in which an item could take its lock, wait for it or be put back.
"""

from __future__ import annotations

from typing import Any

from celery import current_task

from celery_redlock.errors import ConfigurationError

__all__ = ["refuse_items", "refuse_mapped"]

#: Celery's tasks that call another one for each item; `chunks` sends the second.
MAPPING = {"celery.map": "map", "celery.starmap": "starmap or chunks"}


def refuse_items(task: Any, call: str) -> None:
    """
    Refuse a call that would run a task for each item without its lock.

    Raises:
        ConfigurationError: the task takes a lock.
    """
    plan = task.redlock_plan
    if plan is None or plan.keys is None:
        return
    raise ConfigurationError(
        f"Task {task.name} takes a lock, and {call} would call its body once for each item of one "
        f"message, without it. Send a message for each item, which takes its own lock: "
        f"group({task.name}.s(item) for item in items). For chunks of work under one lock, write a "
        "task that takes a list of items."
    )


def refuse_mapped(task: Any) -> None:
    """Refuse a plain call by which Celery runs an item of such a message; errors as above."""
    caller = current_task.name if current_task else None
    if caller in MAPPING:
        refuse_items(task, MAPPING[caller])
