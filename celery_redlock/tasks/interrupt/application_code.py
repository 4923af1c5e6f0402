"""
Whether a body is running the application's code, or Celery's and ours.

A body calls Celery (`self.retry`, `apply_async`, a result's `get`) and this package (another lock).
An exception from outside does harm there: during the publish of a retry, Celery takes it for a
failure to send and rejects the message, and a connection that is left in the middle of a command is
broken for its next user. So `LeaseLost` strikes only where nothing but application code runs.
"""

from __future__ import annotations

from types import FrameType

#: Packages that are not interrupted. `logging` swallows what is raised in a handler.
SPARED = frozenset({"celery", "kombu", "logging"})
#: Our subpackages that run in a body, without `fencing`, which does the application's work.
SPARED_OF_OURS = frozenset(
    {"_greenlets", "_log", "beat", "core", "protocol", "schedules", "tasks", "transport"}
)
PACKAGE = "celery_redlock"

#: Functions, by module and name, that do nothing in a body but call the application's code.
PASS_ON = frozenset(
    {
        ("celery.app.autoretry", "run"),
        ("celery.app.base", "wrapper"),  # checks the arguments with Pydantic
        ("celery.app.task", "__call__"),
        ("celery.local", "__call__"),
        ("celery_redlock.tasks.task", "__call__"),
        ("celery_redlock.tasks.run.run", "run"),
    }
)


def is_application_code(frame: FrameType | None, body: FrameType | None) -> bool:
    """
    Return whether only application code runs between a body's own frame and this one.

    Args:
        frame: the innermost frame of the thread or greenlet that runs the body.
        body: the frame that has called the body; None while none has.
    """
    innermost = frame
    while frame is not None and frame is not body:
        module = frame.f_globals.get("__name__") or ""
        passes_on = frame is not innermost and (module, frame.f_code.co_name) in PASS_ON
        if _is_spared(module) and not passes_on:
            return False
        frame = frame.f_back
    return frame is not None and frame is not innermost


def _is_spared(module: str) -> bool:
    package, _, rest = module.partition(".")
    if package == PACKAGE:
        return rest.partition(".")[0] in SPARED_OF_OURS
    return package in SPARED
