"""
Declarations of locks: the plan of a task, and every mistake in an app.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery_redlock.core import probe_nodes
from celery_redlock.core.node_admin import ProbeResult
from celery_redlock.errors import ConfigurationError, LockKeyError
from celery_redlock.tasks.border import AppLike
from celery_redlock.tasks.config.client import unusable_nodes_error
from celery_redlock.tasks.config.mistakes import Mistakes
from celery_redlock.tasks.config.options import LockPlan
from celery_redlock.tasks.config.resolve import key_options, resolve_options, with_defaults
from celery_redlock.tasks.config.settings import RedlockSettings, check_settings
from celery_redlock.tasks.keys.key_maker import KeyMaker
from celery_redlock.tasks.refusals import refuse_coroutine, refuse_strategy
from celery_redlock.transport import parse_nodes

#: Options of a task that only has its messages deduplicated.
UNLOCKED = {
    "mode": "while_executing",
    "window": None,
    "at_least_for": 0.0,
    "on_conflict": "requeue",
    "starting_deadline": None,
}


def make_plan(cls: Any, settings: RedlockSettings) -> LockPlan | None:
    """
    Return how a task class locks, None if it does not.

    Raises:
        ConfigurationError: options are invalid, or the body would run without the lock.
        LockKeyError: `lock_key` does not fit the task's arguments, and nothing else is wrong.
    """
    options, keys, mistakes = None, None, Mistakes()
    if not getattr(cls, "redlock_dedupe_only", False):
        with mistakes.collected():
            options = resolve_options(cls, settings)
    if options is not None or mistakes:
        with mistakes.collected():
            refuse_coroutine(cls)
        with mistakes.collected():
            refuse_strategy(cls)
        with mistakes.collected():
            of_key = key_options(cls, settings)
            keys = KeyMaker(cls, of_key["key"], of_key["limit"], of_key["rate"])
    mistakes.raise_any()
    if options is None and not settings.dedupe:
        return None
    return LockPlan(
        options=options or with_defaults(settings, UNLOCKED),
        keys=keys,
        lost_signal=settings.lost_signal,
        dedupe=settings.dedupe,
    )


def find_mistakes(
    app: AppLike, *, with_nodes: bool, locks: bool = False
) -> tuple[Mistakes, list[ProbeResult]]:
    """
    Find everything in an app that cannot work as it is written: settings, nodes, entries, tasks.

    Args:
        app: an app whose tasks are registered.
        with_nodes: connect to the lock nodes, if the app needs them.
        locks: whether the app needs its nodes even if no task locks.

    Returns:
        The mistakes, including nodes that can never serve, and the nodes that do not answer.
    """
    settings, found = check_settings(app)
    mistakes, refused = Mistakes(found), []
    for name, task in sorted(app.tasks.items()):
        is_ours = hasattr(task, "redlock_planned")
        if not is_ours and not settings.options_for(name):
            continue
        try:
            locks |= make_plan(type(task), settings) is not None
        except (ConfigurationError, LockKeyError) as error:
            locks = True
            mistakes.append(error)
            if not is_ours:
                refused.append(name)
    if refused:
        mistakes.append(ConfigurationError(f"redlock_tasks {without_lock(refused)}"))
    silent: list[ProbeResult] = []
    if locks:
        with mistakes.collected():
            if with_nodes:
                silent = probe_nodes_of(settings, mistakes)
            else:
                parse_nodes(settings.nodes)
    return mistakes, silent


def without_lock(names: Sequence[str]) -> str:
    """Return advice for tasks that `redlock_tasks` matches and that cannot lock."""
    left_out = ", ".join(f"{name!r}: None" for name in names)
    return (
        "matches tasks that cannot lock. To leave them without a lock, add to redlock_tasks: "
        f"{{{left_out}}}."
    )


def probe_nodes_of(settings: RedlockSettings, mistakes: Mistakes) -> list[ProbeResult]:
    """
    Connect to the lock nodes, and report nodes that can never serve as mistakes.

    Returns:
        The nodes that do not answer; with `redlock_on_unusable_node = "warn"`, unusable ones, too.
    """
    problems = [probe for probe in probe_nodes(settings.nodes) if probe.problem is not None]
    if settings.on_unusable_node == "warn":
        return problems
    unusable = {probe.name: str(probe.problem) for probe in problems if probe.lasting}
    if unusable:
        mistakes.append(unusable_nodes_error(unusable))
    return [probe for probe in problems if not probe.lasting]
