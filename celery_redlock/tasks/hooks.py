"""
Handlers of Celery's signals.

Celery swallows what a signal handler raises, so no handler can keep a body from running without its
lock; `RedlockTask.__call__` and the worker's `LockStep` do that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from celery import current_app, signals
from celery._state import _get_active_apps, connect_on_app_finalize

from celery_redlock._log import event_logger
from celery_redlock.errors import ConfigurationError, RedlockError
from celery_redlock.tasks.adoption import (
    NewTasksStep,
    add_nonce,
    lock_matching_tasks,
    mark_publishes,
    protect_tasks,
    warn_of_idle_options,
)
from celery_redlock.tasks.bootsteps import LockStep, NodeWatchStep
from celery_redlock.tasks.border import AppLike, app_itself, tasks_so_far
from celery_redlock.tasks.config.client import (
    are_nodes_checked,
    close_clients,
    log_problems,
    record_nodes_checked,
)
from celery_redlock.tasks.config.mistakes import Mistakes
from celery_redlock.tasks.config.settings import read_settings
from celery_redlock.tasks.declarations import probe_nodes_of
from celery_redlock.tasks.message.envelope import HEADER
from celery_redlock.tasks.publish.cleanup import CleanupStep, connect_cleanup
from celery_redlock.tasks.run.running_lock import any_active
from celery_redlock.tasks.waiting_messages import WakeStep

logger = event_logger(__name__)

# Differs from the id under which `mark_publishes` connects to the same signal.
FIRST_PUBLISH = "celery_redlock.first_publish"


def connect() -> None:
    """Connect all handlers, once per process."""
    for signal, handler in handlers().items():
        signal.connect(handler, weak=False, dispatch_uid=f"celery_redlock.{signal.name}")
    signals.before_task_publish.connect(_first_publish, weak=False, dispatch_uid=FIRST_PUBLISH)
    connect_on_app_finalize(_app_finalizes)
    connect_cleanup()


def handlers() -> dict[Any, Callable[..., None]]:
    """Return the handler of each signal of a process that starts or ends."""
    return {
        signals.worker_init: _worker_starts,
        signals.worker_process_init: _child_starts,
        signals.worker_process_shutdown: _process_ends,
        signals.worker_shutdown: _process_ends,
        signals.beat_init: _beat_starts,
    }


def _app_finalizes(app: AppLike) -> None:
    # Called before the app evaluates its pending tasks, and the patterns need all tasks.
    app.on_after_finalize.connect(
        apply_settings, weak=False, dispatch_uid="celery_redlock.on_after_finalize"
    )


def apply_settings(sender: Any, **_: Any) -> None:
    """Apply `redlock_tasks` and `redlock_dedupe` to an app that has been finalized. Idempotent."""
    try:
        mark_publishes(sender)
        lock_matching_tasks(sender)
    except ConfigurationError as error:
        if sender.loader.worker_initialized:
            return  # a worker ends with this and all other mistakes, and a beat reports them
        # Raised here, it would reach the log as a fault of a signal handler.
        logger.error(  # noqa: TRY400
            "redlock-tasks-mistake",
            "%(error)s Publishers send these tasks without a lock, and a worker refuses to start.",
            error=error,
        )


def _first_publish(signal: Any, headers: Any = None, **_: Any) -> None:
    # Sending does not finalize an app, so without this a program that only sends would apply no
    # pattern and set no nonce. It is too late for this message's lock, not for its nonce.
    for app in list(_get_active_apps()):
        if app.configured and app.autofinalize:
            _finalize(app, headers)
            # Only tasks known so far: an app that locks nothing is not finalized for this.
            warn_of_idle_options(tasks_so_far(app))
    # Last: messages of other threads must wait for this.
    signal.disconnect(dispatch_uid=FIRST_PUBLISH)


def _finalize(app: AppLike, headers: Any) -> None:
    try:
        settings = read_settings(app)
        if (settings.tasks or settings.dedupe) and not app.finalized:
            app.finalize(auto=True)  # waits for another thread that does it
            _warn_of_missing_lock(app, headers or {})
        if settings.dedupe:
            add_nonce(headers)
    except Exception as error:
        # Other apps of the program may be valid, and this must not stop the message.
        logger.error(  # noqa: TRY400
            "redlock-tasks-without-effect",
            "%(error)s Until that is fixed, redlock_tasks and redlock_dedupe have no effect in app "
            "%(app)r.",
            error=error if isinstance(error, RedlockError) else repr(error),
            app=app.main,
        )


def _warn_of_missing_lock(app: AppLike, headers: Mapping[str, Any]) -> None:
    """Log that a message has left without the lock that its task acquires at publish."""
    task = app.tasks.get(headers.get("task") or "")
    plan = getattr(task, "redlock_plan", None)
    if task is None or plan is None:
        return
    if plan.options.mode_spec.at_publish and HEADER not in headers:
        logger.warning(
            "message-before-finalize",
            "The first message of this process, of task %(task)s[%(task_id)s], is sent without its "
            "lock: redlock_tasks takes effect when the app is finalized, and sending a message "
            "does not finalize it. Call app.finalize() once all tasks are imported, before the "
            "first message.",
            task=task.name,
            task_id=headers.get("id"),
        )


def _worker_starts(sender: Any, **_: Any) -> None:
    sender.app.steps["worker"].update((LockStep, NodeWatchStep))
    sender.app.steps["consumer"].update((NewTasksStep, WakeStep, CleanupStep))


def _child_starts(**_: Any) -> None:
    # A spawned child imports the app anew, and may finalize it before it imports this package.
    app = app_itself(current_app)
    lock_matching_tasks(app)
    protect_tasks(app)
    record_nodes_checked(app)  # the worker that started this child has checked them


def _beat_starts(sender: Any, **_: Any) -> None:
    # Imports Celery's beat, which only a beat needs.
    from celery_redlock.tasks.ticks.tick_stamping import stamp_stock_beat

    stamp_stock_beat(sender)
    plans = (getattr(task, "redlock_plan", None) for task in sender.app.tasks.values())
    if any(plan is not None and plan.options.mode_spec.at_publish for plan in plans):
        check_nodes_of_beat(sender.app)


def check_nodes_of_beat(app: AppLike) -> None:
    """
    Check the lock nodes of a beat that needs them, unless the worker that started it has.

    Raises:
        SystemExit: a node can never serve; any other exception would only be logged.
    """
    if are_nodes_checked(app):
        return
    mistakes = Mistakes()
    with mistakes.collected():
        settings = read_settings(app)
        log_problems(settings, probe_nodes_of(settings, mistakes))
    if mistakes:
        raise SystemExit(str(mistakes.all_in_one()))
    record_nodes_checked(app)


def _process_ends(**_: Any) -> None:
    # Threads outlive a cold shutdown, and their bodies still need their leases.
    if not any_active():
        close_clients()
