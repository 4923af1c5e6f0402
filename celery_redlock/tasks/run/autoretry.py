"""
The end of a body that Celery retries automatically (`autoretry_for`).
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from celery_redlock.tasks.border import TaskLike, run_in_autoretry, set_run_in_autoretry
from celery_redlock.tasks.run.running_lock import current_running_lock


def end_before_autoretry(task: TaskLike) -> None:
    """
    Have a task's body end where Celery's autoretry takes over what it raised. Idempotent.

    Celery wraps the task's `run`, so it sends the retry from inside the call of the body. A
    `LeaseLost` that was thrown at the application's code could land in the retry if that code ends
    meanwhile, so it is taken back.
    """
    application = run_in_autoretry(task)
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
    set_run_in_autoretry(task, run)
