"""
The options of one task, from its attributes, `redlock_tasks` and the app's defaults.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.border import TaskLike, annotations_of
from celery_redlock.tasks.config.mistakes import Mistakes
from celery_redlock.tasks.config.option_values import MODES, Mode, check_storable
from celery_redlock.tasks.config.options import (
    NONE_IS_A_VALUE,
    OF_OTHERS,
    OPTIONS,
    PREFIX,
    LockOptions,
    almost_option,
    checked,
    unknown_name,
)
from celery_redlock.tasks.config.settings import RedlockSettings
from celery_redlock.tasks.config.validation import contradictions

#: Packages whose task classes have attributes that are no misspelt options.
_FOREIGN = frozenset({"celery", "celery_once", "celery_singleton"})


#: Options that `lock_debounce` sets where neither the task nor a pattern does.
_DEBOUNCED = {
    "mode": "until_executing",
    "on_duplicate": "replace",
    "on_conflict": "requeue",
    "starting_deadline": None,
}


def resolve_options(task: TaskLike, settings: RedlockSettings) -> LockOptions | None:
    """
    Return the lock options of a task, by its class; None if neither it nor a pattern sets one.

    An attribute of the task (from `task_annotations`, the decorator or the class, in Celery's order
    of precedence) overrides a `redlock_tasks` pattern, which overrides a `redlock_<option>`
    setting. A value of None leaves the option to the next of these, except for `lock_skip_result`.

    Raises:
        ConfigurationError: options are unknown, have an invalid value, or contradict each other;
            the message names each.
    """
    subject = f"task {task.name!r}"
    mistakes = Mistakes()
    mistakes.extend(ConfigurationError(f"{subject}: {problem}") for problem in _unknown(task))
    own = {}
    for name in OPTIONS:
        if _is_set(task, name):
            with mistakes.collected():
                value = _attribute(task, PREFIX + name)
                own[name] = checked(OPTIONS[name], value, f"{subject}: {PREFIX}{name}")
    explicit = {**settings.options_for(task.name), **own}
    if "skip_result" in explicit:
        with mistakes.collected():
            label = f"{subject}: {PREFIX}skip_result"
            check_storable(explicit["skip_result"], label, settings.app())
    mistakes.raise_any()
    if not explicit:
        return None
    options = with_defaults(settings, explicit)
    acks_late = bool(getattr(task, "acks_late", False))
    for problem in contradictions(options, explicit, settings.max_ttl, acks_late):
        mistakes.append(ConfigurationError(f"{subject}: {problem}."))
    mistakes.raise_any()
    return options


def origins_of(task: TaskLike, settings: RedlockSettings, mode: Mode) -> dict[str, str]:
    """
    Return from where `resolve_options` takes each option of a task, in words.

    Args:
        task: the class of the task.
        settings: the app's settings.
        mode: the task's mode.
    """
    pattern = settings.pattern_for(task.name)
    in_pattern, without_use = settings.options_for(task.name), _without_use(mode)
    annotated = {name for annotation in annotations_of(task) for name in annotation}
    is_debounced = _is_set(task, "debounce") or "debounce" in in_pattern
    implied = {
        name
        for name, value in _DEBOUNCED.items()
        if is_debounced and (name in settings.defaults or value != getattr(LockOptions(), name))
    }
    found = {}
    for name in OPTIONS:
        if _is_set(task, name):
            is_annotated = PREFIX + name in annotated
            found[name] = "task_annotations" if is_annotated else _declared_by(task, PREFIX + name)
        elif name in in_pattern:
            found[name] = f"redlock_tasks[{pattern!r}]"
        elif name in implied:
            found[name] = "lock_debounce"
        elif name in settings.defaults and name not in without_use:
            found[name] = f"redlock_{name}"
        else:
            found[name] = "default"
    return found


def key_options(task: TaskLike, settings: RedlockSettings) -> dict[str, Any]:
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


def with_defaults(settings: RedlockSettings, explicit: Mapping[str, Any]) -> LockOptions:
    """Return the options of a task that sets only the given ones."""
    defaults = {field.name: field.default for field in fields(LockOptions)}
    defaults["ttl"] = settings.ttl
    implied = _DEBOUNCED if explicit.get("debounce") else {}
    resolved = {**defaults, **settings.defaults, **implied, **explicit}
    mode = MODES[resolved["mode"]]
    # A setting for all tasks does not concern the modes that have no use for the option.
    resolved |= {name: defaults[name] for name in _without_use(mode)}
    return LockOptions(**resolved)


def _without_use(mode: Mode) -> set[str]:
    """Return the options whose settings a mode ignores."""
    return {name for name in ("window", "on_conflict", "on_duplicate") if not mode.uses(name)}


def _unknown(task: Any) -> Iterator[str]:
    known = {PREFIX + name for name in OPTIONS}
    owners: dict[str, str] = {}
    for cls in task.__mro__:
        for name in vars(cls):
            owners.setdefault(name, cls.__module__)
    for name, module in owners.items():
        # RedlockTask's own methods, such as lock_holder, are not options.
        ours = module.partition(".")[0] == __name__.partition(".")[0]
        if ours or name in known:
            continue
        is_foreign = module.partition(".")[0] in _FOREIGN
        if not is_foreign and (meant := _meant(task, name)):
            yield f"{name} is unknown; did you mean {meant}?"
        elif name.startswith(PREFIX):
            yield (
                f"{unknown_name(name, PREFIX, OPTIONS)} Names that start with {PREFIX} "
                "are reserved for options."
            )


def _meant(task: TaskLike, name: str) -> str | None:
    """Return the option that an attribute of another name was surely meant to be, if any."""
    if name not in OF_OTHERS:
        return almost_option(name)
    value = _attribute(task, name)
    # An application may use the name `once` for something else; celery-once takes a mapping.
    is_option = isinstance(value, dict) if name == "once" else value is not None
    return OF_OTHERS[name] if is_option else None


def _is_set(task: TaskLike, name: str) -> bool:
    """Return whether an attribute sets an option; None leaves most options to the next layer."""
    attribute = PREFIX + name
    return _attribute(task, attribute) is not None or (
        name in NONE_IS_A_VALUE and hasattr(task, attribute)
    )


def _declared_by(task: Any, attribute: str) -> str:
    """Return the class that sets an attribute, in words."""
    cls = next(cls for cls in task.__mro__ if attribute in vars(cls))
    # The class of a task that `redlock_tasks` makes lock derives from its own, by its name.
    is_own = (cls.__module__, cls.__qualname__) == (task.__module__, task.__qualname__)
    return "the task" if is_own else f"base class {cls.__module__}.{cls.__qualname__}"


def _attribute(task: TaskLike, name: str) -> Any:
    # Read without binding: a function given as an option is not a method of the task.
    value = inspect.getattr_static(task, name, None)
    return value.__func__ if isinstance(value, staticmethod) else value
