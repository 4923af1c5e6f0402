"""
Where a body ends that Celery sends again by itself (`autoretry_for`).
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from celery_redlock.tasks.run.running_lock import current_running_lock

__all__ = ["end_before_autoretry"]


def end_before_autoretry(task: Any) -> None:
    """
    Have a task's body end where Celery's autoretry takes over what it raised. Idempotent.

    Celery wraps the task's `run`, so the retry is sent from inside what is called as the body. A
    `LeaseLost` that was thrown at the application's code may land there, if that ends meanwhile:
    it is taken back.
    """
    application = vars(task).get("_orig_run")
    if application is None or getattr(application, "celery_redlock", False):
        return

    @wraps(application)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return application(*args, **kwargs)
        finally:
            running_lock = current_running_lock()
            if running_lock is not None:
                running_lock.defer_interrupt()

    run.celery_redlock = True  # type: ignore[attr-defined]  # marks it as wrapped
    task._orig_run = run
