"""
The options of one task, from its attributes, `redlock_tasks` and the app's defaults.

The check of one option is in `options`, and that of options against each other is here.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from celery_redlock.core import Limit, Rate
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
    shown,
    unknown_name,
)
from celery_redlock.tasks.config.settings import RedlockSettings

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
    for problem in _contradictions(options, explicit, settings.max_ttl, acks_late):
        mistakes.append(ConfigurationError(f"{subject}: {problem}."))
    mistakes.raise_any()
    return options


def _contradictions(
    options: LockOptions, explicit: Mapping[str, Any], max_ttl: float, acks_late: bool
) -> Iterator[str]:
    """
    Iterate over messages about options that contradict each other.

    Args:
        options: the task's options.
        explicit: the options that the task or a pattern sets.
        max_ttl: the setting `redlock_max_ttl`.
        acks_late: whether the task's messages are acknowledged when it ends.
    """
    if options.ttl > max_ttl:
        yield (
            f"lock_ttl={options.ttl:g} is above redlock_max_ttl={max_ttl:g}; lower it (the "
            "watchdog extends the lock while the body runs), or raise redlock_max_ttl in every "
            "process"
        )
    if options.max_hold < options.ttl:
        yield (
            f"lock_max_hold={options.max_hold:g} is below lock_ttl={options.ttl:g}, so the lock "
            "would outlive it; lower lock_ttl"
        )
    if options.at_least_for > options.max_hold:
        yield (
            f"lock_at_least_for={options.at_least_for:g} is above "
            f"lock_max_hold={options.max_hold:g}; raise lock_max_hold"
        )
    if options.wait is not None and options.wait > options.give_up_after:
        yield (
            f"lock_wait={options.wait:g} is above lock_give_up_after={options.give_up_after:g}; "
            "one wait must not exceed the limit on all waits; lower lock_wait"
        )
    if options.on_conflict == "reject" and options.mode_spec.waits_at_run and not acks_late:
        yield (
            "lock_on_conflict='reject' needs acks_late=True, because a message that was "
            "acknowledged before its task cannot be rejected; set it, or use 'raise'"
        )
    yield from _in_the_way_of_a_debounce(options)
    yield from _unused_options(options, explicit)


def _in_the_way_of_a_debounce(options: LockOptions) -> Iterator[str]:
    """Describe options with which the newest call of a burst would not be the one that runs."""
    if options.debounce is None:
        return
    mode = options.mode_spec
    if not mode.at_publish or mode.held_in_body:
        yield (
            f"lock_debounce does not go with lock_mode={mode.name!r}: the publisher has to acquire "
            "the key, and the key has to be free for the next burst once the body begins; remove "
            "lock_mode (the default is 'until_executing' here), or use "
            "'until_and_while_executing', whose bodies do not overlap"
        )
    if mode.at_publish and options.on_duplicate != "replace":
        yield (
            "lock_debounce lets the newer call replace the older one, and "
            f"lock_on_duplicate={shown(options.on_duplicate)} does not; remove it"
        )
    if mode.waits_at_run and not options.requeues:
        yield (
            f"lock_on_conflict={shown(options.on_conflict)} would drop the newest call, which "
            "lock_debounce promises to run, while an older body runs; remove it"
        )
    if options.starting_deadline is not None:
        yield (
            "lock_starting_deadline would skip a call that has replaced others, and lock_debounce "
            "promises that it runs; remove one of the two"
        )
    limited = any(isinstance(key, Limit | Rate) for key in options.key_forms)
    if limited or options.limit is not None or options.rate is not None:
        yield (
            "lock_debounce keeps one waiting call for each key, and a key with a limit or a rate "
            "may have several; remove the limit, and let the body send a second task that has it"
        )


def _unused_options(options: LockOptions, explicit: Mapping[str, Any]) -> Iterator[str]:
    """
    Describe options that the task has no use for.

    Only options that the task or a pattern sets count: an app's default is for other tasks, too.
    """
    mode = options.mode_spec
    where = f"lock_mode={mode.name!r}"
    if mode.for_window and options.window is None:
        yield f"{where} needs lock_window, the seconds for which the key stays taken; set it"
    if "window" in explicit and not mode.for_window:
        yield f"lock_window goes with lock_mode='until_expired', not with {where}; remove it"
    for name in ("queue_ttl", "on_duplicate"):
        if name in explicit and not mode.at_publish:
            yield (
                f"lock_{name} is for a lock that the publisher acquires, and in {where} it "
                "acquires none; remove it or use a mode that begins with until_"
            )
    if "on_conflict" in explicit and not mode.waits_at_run:
        yield (
            f"lock_on_conflict is for a lock that the worker acquires, and in {where} it acquires "
            "none; remove it or use lock_on_duplicate, the policy of the publisher"
        )
    if "queue_ttl" in explicit and mode.for_window:
        yield f"lock_queue_ttl has no use in {where}, where lock_window sets the time; remove it"
    for name in ("on_lost", "at_least_for"):
        if explicit.get(name) and not mode.in_body:
            yield (
                f"lock_{name} is about the lock of a body, and in {where} the body has none; "
                "remove it or use 'until_executed' or 'until_and_while_executing'"
            )
    if explicit.get("at_least_for") and mode.for_window:
        yield (
            f"lock_at_least_for has no use in {where}, where lock_window sets the time; remove it"
        )
    if explicit.get("on_conflict") == "stop" and _lets_several_in(options):
        yield (
            "lock_on_conflict='stop' asks the only holder of a key to stop, and a limit or a rate "
            "lets several have it; remove one of them, or use lock_on_conflict='skip'"
        )
    if explicit.get("on_conflict") == "stop" and explicit.get("fair"):
        yield (
            "lock_fair gives the lock to the message that has waited longest, and "
            "lock_on_conflict='stop' to the newest; remove one of them"
        )
    if "skip_result" in explicit and not _may_skip(options):
        policy, advice = f"lock_on_conflict={options.on_conflict!r}", "lock_on_conflict='skip'"
        if mode.at_publish:
            policy, advice = f"lock_on_duplicate={options.on_duplicate!r}", "'existing'"
        yield (
            f"lock_skip_result is set, but {policy} never skips; use {advice} or remove "
            "lock_skip_result"
        )


def _lets_several_in(options: LockOptions) -> bool:
    of_keys = any(
        isinstance(key, Rate) or (isinstance(key, Limit) and key.limit != 1)
        for key in options.key_forms
    )
    return of_keys or options.limit not in (None, 1) or options.rate is not None


def _may_skip(options: LockOptions) -> bool:
    mode = options.mode_spec
    at_run = options.on_conflict == "skip" or callable(options.on_conflict)
    at_publish = options.on_duplicate == "existing" or callable(options.on_duplicate)
    return (
        options.starting_deadline is not None
        or (mode.waits_at_run and at_run)
        or (mode.at_publish and at_publish)
    )


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
