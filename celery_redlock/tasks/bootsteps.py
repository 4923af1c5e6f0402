"""
The worker's bootsteps, which check the locks of tasks and the nodes before work is accepted.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from celery.concurrency.prefork import TaskPool as PreforkPool

from celery_redlock._log import event_logger
from celery_redlock.core import Limit, Rate
from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.adoption import (
    idle_patterns,
    lock_matching_tasks,
    protect_tasks,
    warn_of_idle_options,
)
from celery_redlock.tasks.border import AppLike
from celery_redlock.tasks.config.client import log_nodes_once, log_problems, record_nodes_checked
from celery_redlock.tasks.config.options import plans_with_keys
from celery_redlock.tasks.config.settings import BUILT_IN, check_settings, read_settings
from celery_redlock.tasks.declarations import find_mistakes
from celery_redlock.tasks.keys.templates import Template
from celery_redlock.tasks.node_watch import NodeWatch
from celery_redlock.tasks.run.shown_end import announce_ends
from celery_redlock.tasks.task import RedlockTask
from celery_redlock.transport import kind_of, parse_node

logger = event_logger(__name__)


class LockStep(bootsteps.Step):  # type: ignore[misc]  # Celery is untyped
    """
    Applies `redlock_tasks` and `redlock_dedupe`, and probes every lock node once.

    It runs before the pool starts, so that forked pool processes inherit the result.

    Configuration errors (an invalid option, a wrong password) end the worker's start, in one
    message. A node that is down does not: it may come back, and a quorum is enough.
    """

    name = "celery-redlock"

    def create(self, parent: Any) -> None:
        """Prepare the app's locks; `ConfigurationError` ends the worker's start."""
        app = parent.app
        mistakes, silent = find_mistakes(app, with_nodes=True)
        with mistakes.collected():
            _check_that_processes_share_nodes(parent)
        if mistakes:
            raise mistakes.all_in_one()
        # Pool processes know of `--task-events` only from the app's configuration.
        app.conf.worker_send_task_events = bool(parent.task_events)
        lock_matching_tasks(app)
        protect_tasks(app)
        for pattern in idle_patterns(app):
            logger.warning(
                "pattern-matches-no-task",
                "redlock_tasks: no registered task matches %(pattern)r, so it locks nothing. "
                "Tasks: %(tasks)s",
                pattern=pattern,
                tasks=", ".join(
                    sorted(name for name in app.tasks if not name.startswith(BUILT_IN))
                ),
            )
        _log_tasks_without_lock(app)
        _warn_of_shared_keys(app)
        _warn_of_limits_that_differ(app)
        locking = [task for task in app.tasks.values() if getattr(task, "redlock_plan", None)]
        for task in locking:
            announce_ends(task)
        if locking:
            settings = read_settings(app)
            log_nodes_once(settings)
            log_problems(settings, silent)
        record_nodes_checked(app)


class NodeWatchStep(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery is untyped
    """Keeps the log of the lock nodes, in a worker with tasks that lock."""

    name = "celery-redlock-nodes"
    #: When the log starts, tasks that lock are known and checked, and the pool has forked.
    requires = (LockStep, "celery.worker.components:Pool")

    def create(self, parent: Any) -> NodeWatch | None:
        """Make the log before the pool forks; it starts after that."""
        locks = any(getattr(task, "redlock_plan", None) for task in parent.app.tasks.values())
        return NodeWatch(parent.app) if locks else None


def _check_that_processes_share_nodes(worker: Any) -> None:
    """Raise `ConfigurationError` for in-memory nodes in a pool of processes."""
    settings, _ = check_settings(worker.app)
    in_memory = [url for url in settings.given_nodes if kind_of(parse_node(url)).is_in_process]
    if in_memory and isinstance(worker.pool_cls, type) and issubclass(worker.pool_cls, PreforkPool):
        raise ConfigurationError(
            f"setting redlock_nodes: {in_memory[0]} is a node in the memory of one process, and "
            "each process of a prefork pool has its own, so their tasks do not exclude each other. "
            "Use Redis servers, or start this worker with --pool=solo or --pool=threads."
        )


def _log_tasks_without_lock(app: AppLike) -> None:
    """Log the tasks that look as if they lock, and do not."""
    tasks = [task for name, task in sorted(app.tasks.items()) if not name.startswith(BUILT_IN)]
    warn_of_idle_options(tasks)
    without_options = [
        task.name
        for task in tasks
        if isinstance(task, RedlockTask)
        and not task.redlock_dedupe_only
        and (task.redlock_plan is None or task.redlock_plan.keys is None)
    ]
    if without_options:
        logger.info(
            "tasks-without-lock-option",
            "These tasks are RedlockTasks without any lock option, so they do not lock: %(tasks)s. "
            "lock_key=True would give each its default key.",
            tasks=", ".join(without_options),
        )


def _warn_of_shared_keys(app: AppLike) -> None:
    """Log each group of tasks that lock at publish and may have the same key, once."""
    groups: dict[Any, dict[str, str]] = {}
    for name, plan, keys in plans_with_keys(app):
        for template in keys.templates if plan.options.mode_spec.at_publish else ():
            groups.setdefault(template.shape, {})[name] = template.source
    for group in groups.values():
        if len(group) > 1:
            (name, source), *_ = group.items()
            logger.warning(
                "tasks-share-publish-key",
                "The tasks %(tasks)s lock at publish and can have the same key "
                "(lock_key=%(keys)s). While one of them holds it, a call of another is sent and "
                "waits, even if that call is a duplicate. If they need not exclude each other, "
                "give each a key of its own, such as lock_key=%(suggestion)r.",
                tasks=", ".join(group),
                keys=" or ".join(map(repr, sorted(set(group.values())))),
                suggestion=f"{name}:{source}",
            )


def _warn_of_limits_that_differ(app: AppLike) -> None:
    """Log each group of tasks that may have the same key and give it different limits, once."""
    groups: dict[Any, dict[str, list[tuple[Template, Limit | Rate]]]] = {}
    for name, _, keys in plans_with_keys(app):
        for template, spec in keys.limits:
            if isinstance(spec, Limit) and callable(spec.limit):
                continue  # what a function returns is not known here
            group = groups.setdefault((template.shape, type(spec)), {})
            group.setdefault(name, []).append((template, spec))
    for group in groups.values():
        limits = {frozenset(spec.slots_and_period() for _, spec in own) for own in group.values()}
        if len(limits) > 1:
            (name, ((template, _), *_)), *_ = group.items()
            logger.warning(
                "tasks-share-limited-key",
                "The tasks %(tasks)s can have the same key but give it different limits: "
                "%(limits)s. Each task applies its own limit, so more tasks may hold the key than "
                "the lowest limit allows. Give them the same limit, or give each a key of its own, "
                "such as %(suggestion)r.",
                tasks=", ".join(group),
                limits="; ".join(
                    f"{task}: {_shown_limits(specs)}" for task, specs in group.items()
                ),
                suggestion=f"{name}:{template.source}",
            )


def _shown_limits(specs: list[tuple[Template, Limit | Rate]]) -> str:
    return " and ".join(
        f"Limit({template.source!r}, {spec.limit!r})"
        if isinstance(spec, Limit)
        else f"Rate({template.source!r}, {spec.rate!r}"
        f"{'' if spec.per is None else f', per={spec.per!r}'})"
        for template, spec in specs
    )
