"""
Support for a `celery` command whose app does not import this package.

Celery's command loads the package's commands before it loads the app. Through them, a worker or
beat that it starts applies `redlock_tasks` and `redlock_dedupe`. In a program that only sends,
nothing loads the package; where that matters, the worker or beat logs a warning.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import signals
from celery._state import connect_on_app_finalize

from celery_redlock._log import event_logger

if TYPE_CHECKING:
    from celery_redlock.tasks.border import AppLike

logger = event_logger(__name__)

TASK_LAYER = "celery_redlock.tasks"
#: The settings that make a task lock although its code does not use this package.
SETTINGS = ("redlock_tasks", "redlock_dedupe")


def connect() -> None:
    """Apply the settings of each app that is finalized in this process. Idempotent."""
    connect_on_app_finalize(_app_finalizes)
    for starts in (signals.worker_init, signals.beat_init):
        starts.connect(_process_starts, weak=False, dispatch_uid=f"{__name__}.starts")


def _app_finalizes(app: AppLike) -> None:
    app.on_after_finalize.connect(_app_finalized, weak=False, dispatch_uid=__name__)


def _process_starts(signal: Any, sender: Any, **_: Any) -> None:
    # `app.worker_main()` may load Celery's command after the app has been finalized.
    if _app_finalized(sender.app):
        from celery_redlock.tasks.hooks import handlers

        handlers()[signal](sender=sender)


def _app_finalized(sender: Any, **_: Any) -> bool:
    """Apply the settings of an app unless that was done before; return whether this call did it."""
    if TASK_LAYER in sys.modules or not any(map(sender.conf.get, SETTINGS)):
        return False
    # Loads the task layer, which takes as long as Celery itself; most commands do without.
    from celery_redlock.tasks.hooks import apply_settings

    apply_settings(sender)
    # Warn later, when the process has set up its log.
    for starts in (signals.celeryd_after_setup, signals.beat_init):
        starts.connect(partial(_warn_of_publishers, sender), weak=False, dispatch_uid=__name__)
    return True


def _warn_of_publishers(app: AppLike, **_: Any) -> None:
    plans = [getattr(task, "redlock_plan", None) for task in app.tasks.values()]
    locks_at_publish = any(plan is not None and plan.options.mode_spec.at_publish for plan in plans)
    if locks_at_publish or app.conf.get("redlock_dedupe"):
        logger.warning(
            "app-does-not-import",
            "%(setting)s of app %(app)r takes effect in this process because a celery command "
            "started it. The app does not import %(module)s, so programs that only send its tasks "
            "neither acquire locks at publish nor mark messages. Write import %(module)s where the "
            "app is made.",
            setting=" and ".join(filter(app.conf.get, SETTINGS)),
            app=app.main,
            module=TASK_LAYER,
        )
