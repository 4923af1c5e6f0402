"""
The options of one task, from its attributes, `redlock_tasks` and the app's defaults.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.config.mistakes import Mistakes
from celery_redlock.tasks.config.modes import MODES
from celery_redlock.tasks.config.options import (
    NONE_IS_A_VALUE,
    OPTIONS,
    PREFIX,
    LockOptions,
    almost_option,
    check_option,
    unknown_name,
)
from celery_redlock.tasks.config.policies import policies_for
from celery_redlock.tasks.config.settings import RedlockSettings
from celery_redlock.tasks.config.skip_result import check_storable
from celery_redlock.tasks.config.validation import contradictions

__all__ = ["default_options", "key_options", "resolve_options"]


def resolve_options(task: Any, settings: RedlockSettings) -> LockOptions | None:
    """
    Return the lock options of `task`, or None if neither the task nor a pattern sets one.

    An attribute of the task (from `task_annotations`, the decorator or the class, in Celery's order
    of precedence) overrides a `redlock_tasks` pattern, which overrides a `redlock_<option>`
    setting. None as a value leaves the option to the next of these, but for `lock_skip_result`.

    Raises:
        ConfigurationError: options are unknown, have an invalid value, or contradict each other;
            the message names each.
    """
    subject = f"task {task.name!r}"
    mistakes = Mistakes()
    for problem in _unknown(task):
        mistakes.add(ConfigurationError(f"{subject}: {problem}"))
    own = {}
    for name in OPTIONS:
        value = _attribute(task, PREFIX + name)
        is_set = value is not None or (name in NONE_IS_A_VALUE and hasattr(task, PREFIX + name))
        if is_set:
            with mistakes.collected():
                own[name] = check_option(name, value, f"{subject}: {PREFIX}{name}")
    explicit = {**settings.options_for(task.name), **own}
    if "skip_result" in explicit:
        with mistakes.collected():
            label = f"{subject}: {PREFIX}skip_result"
            check_storable(explicit["skip_result"], label, settings.app())
    mistakes.raise_any()
    if not explicit:
        return None
    options = _with_defaults(settings, explicit)
    resolved = {**settings.defaults, **explicit}
    acks_late = bool(getattr(task, "acks_late", False))
    for problem in contradictions(options, resolved, explicit, settings.max_ttl, acks_late):
        mistakes.add(ConfigurationError(f"{subject}: {problem}."))
    mistakes.raise_any()
    return options


def key_options(task: Any, settings: RedlockSettings) -> dict[str, Any]:
    """Return `lock_key`, `lock_limit` and `lock_rate` of a task; None where one is wrong."""
    found: dict[str, Any] = {}
    for name in ("key", "limit", "rate"):
        own = _attribute(task, f"{PREFIX}{name}")
        try:
            known = {**settings.defaults, **settings.options_for(task.name)}
            found[name] = known.get(name) if own is None else OPTIONS[name](own)
        except ConfigurationError:
            found[name] = None
    return found


def default_options(settings: RedlockSettings) -> LockOptions:
    """Return the options of a task that sets none."""
    return _with_defaults(settings, {})


def _with_defaults(settings: RedlockSettings, explicit: Mapping[str, Any]) -> LockOptions:
    defaults = {field.name: field.default for field in fields(LockOptions)}
    # A redlock_max_ttl below the built-in TTL is valid without a redlock_ttl.
    defaults["ttl"] = min(LockOptions().ttl, settings.max_ttl)
    resolved = {**defaults, **settings.defaults, **explicit}
    resolved.pop("on_conflict", None)
    mode = MODES[resolved["mode"]]
    if not mode.for_window:
        resolved["window"] = None
    if mode.at_publish and "overlap" not in explicit:
        resolved["overlap"] = None
    for source in (settings.defaults, explicit):
        if "on_conflict" in source:
            for side, policy in policies_for(source["on_conflict"], mode).items():
                resolved[f"{side}_policy"] = policy
    return LockOptions(**resolved)


def _unknown(task: Any) -> Iterator[str]:
    known = {PREFIX + name for name in OPTIONS}
    owners: dict[str, str] = {}
    for cls in task.__mro__ if isinstance(task, type) else type(task).__mro__:
        for name in vars(cls):
            owners.setdefault(name, cls.__module__)
    owners.update(dict.fromkeys(() if isinstance(task, type) else vars(task), ""))
    for name, module in owners.items():
        # RedlockTask's own methods, such as lock_holder, are not options.
        ours = module.partition(".")[0] == __name__.partition(".")[0]
        if name.startswith(PREFIX) and name not in known and not ours:
            yield (
                f"{unknown_name(name, PREFIX, OPTIONS)} Names that start with {PREFIX} "
                "are reserved for options."
            )
        elif not ours and module.partition(".")[0] != "celery" and (meant := almost_option(name)):
            yield f"{name} is unknown; did you mean {meant}?"


def _attribute(task: Any, name: str) -> Any:
    # Read without binding: a function given as an option is not a method of the task.
    value = inspect.getattr_static(task, name, None)
    return value.__func__ if isinstance(value, staticmethod) else value
