"""The `lock_*` options of a task: what each may say, and what a task's own options come to."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tenacity import AsyncRetrying, BaseRetrying
from tenacity.wait import wait_base

from celery_redlock.core import SHORTEST_TTL
from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from celery_redlock.tasks.settings import RedlockSettings

__all__ = ["LockOptions", "check_option", "resolve_options", "seconds", "unknown_name"]

PREFIX = "lock_"
NOT_IN_THIS_VERSION = "belongs to the publish-time modes, which are not in this version"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOptions:
    """
    Everything that decides how one task locks; durations in seconds.

    Attributes:
        key: True for the default key, a template, a function, or a list of these.
        retry: None for the built-in waits, a tenacity wait, or a whole `tenacity.Retrying`.
    """

    key: Any = True
    mode: str = "while_executing"
    ttl: float = 30.0
    wait: float = 0.5
    retry: wait_base | BaseRetrying | None = None
    on_conflict: str | Callable[..., Any] = "requeue"
    skip_result: Any = None
    give_up_after: float = 3600.0
    on_unavailable: str = "requeue"
    on_lost: str | Callable[..., Any] = "interrupt"
    max_hold: float = 86400.0
    at_least_for: float = 0.0


def resolve_options(task: Any, settings: RedlockSettings) -> LockOptions | None:
    """
    Return how `task` locks, or None where nothing on the task asks for a lock.

    An attribute of the task (`task_annotations`, decorator or class, in the order in which Celery
    lets them override each other) goes before a `redlock_tasks` pattern, that before a
    `redlock_<option>` setting. None as a value means: not said here.

    Raises:
        ConfigurationError: an option is unknown, has an impossible value, or contradicts another.
    """
    subject = f"task {task.name!r}"
    _refuse_unknown(task, subject)
    own = {
        name: check_option(name, value, f"{subject}: {PREFIX}{name}")
        for name in (*OPTIONS, *PUBLISH_ONLY)
        if (value := _attribute(task, PREFIX + name)) is not None
    }
    given = {**settings.options_for(task.name), **own}
    if not given:
        return None
    defaults = {field.name: field.default for field in fields(LockOptions)}
    # The built-in lease is no reason to refuse a smaller max_ttl.
    defaults["ttl"] = min(LockOptions().ttl, settings.max_ttl)
    options = LockOptions(**{**defaults, **settings.defaults, **given})
    problem = _contradiction(options, {**settings.defaults, **given}, given, settings.max_ttl)
    if problem:
        raise ConfigurationError(f"{subject}: {problem}.")
    return options


def check_option(name: str, value: Any, label: str) -> Any:
    """Return the value of option `name` in its normal form, or raise `ConfigurationError`."""
    if name in PUBLISH_ONLY:
        raise ConfigurationError(f"{label} {NOT_IN_THIS_VERSION}; remove it.")
    try:
        return OPTIONS[name](value)
    except ConfigurationError as exc:
        raise ConfigurationError(f"{label}={value!r} {exc}.") from None


def unknown_name(name: str, prefix: str, known: Iterable[str]) -> str:
    """Say that a name is unknown, with the name that was probably meant."""
    # Compared without the prefix that all names share, which would make any two look alike.
    close = difflib.get_close_matches(name.removeprefix(prefix), known := sorted(known), n=1)
    choices = ", ".join(prefix + choice for choice in known)
    hint = f"did you mean {prefix}{close[0]}?" if close else f"the names are: {choices}."
    return f"{name} is unknown; {hint}"


def seconds(minimum: float) -> Callable[[Any], float]:
    """Return a check for a duration, given as seconds or timedelta, of at least `minimum`."""

    def check(value: Any) -> float:
        if isinstance(value, timedelta):
            value = value.total_seconds()
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigurationError("is not a duration; give seconds as a number, or a timedelta")
        if not math.isfinite(value) or value < minimum:
            raise ConfigurationError(f"is out of range; give at least {minimum:g} seconds")
        return float(value)

    return check


def _refuse_unknown(task: Any, subject: str) -> None:
    known = {PREFIX + name for name in (*OPTIONS, *PUBLISH_ONLY)}
    owners: dict[str, str] = {}
    for cls in task.__mro__ if isinstance(task, type) else type(task).__mro__:
        for name in vars(cls):
            owners.setdefault(name, cls.__module__)
    owners.update(dict.fromkeys(() if isinstance(task, type) else vars(task), ""))
    for name, module in owners.items():
        # RedlockTask's own methods, such as lock_holder, are not options.
        ours = module.partition(".")[0] == __name__.partition(".")[0]
        if name.startswith(PREFIX) and name not in known and not ours:
            raise ConfigurationError(
                f"{subject}: {unknown_name(name, PREFIX, OPTIONS)} Names that start with {PREFIX} "
                "are kept for options."
            )


def _attribute(task: Any, name: str) -> Any:
    # Read without binding: a function given as an option is not a method of the task.
    value = inspect.getattr_static(task, name, None)
    return value.__func__ if isinstance(value, staticmethod) else value


def _contradiction(
    options: LockOptions, said: Mapping[str, Any], given: Mapping[str, Any], max_ttl: float
) -> str | None:
    """Describe two options that cannot both be meant, with the mend."""
    if options.ttl > max_ttl:
        return (
            f"lock_ttl={options.ttl:g} is above redlock_max_ttl={max_ttl:g}; lower it (the lease "
            "is renewed while the body runs) or raise redlock_max_ttl in every process"
        )
    if options.max_hold < options.ttl:
        return (
            f"lock_max_hold={options.max_hold:g} is below lock_ttl={options.ttl:g}, so the lease "
            "would outlive it; lower lock_ttl"
        )
    if options.at_least_for > options.max_hold:
        return (
            f"lock_at_least_for={options.at_least_for:g} is above "
            f"lock_max_hold={options.max_hold:g}; raise lock_max_hold"
        )
    if "wait" in said and options.wait > options.give_up_after:
        return (
            f"lock_wait={options.wait:g} is above lock_give_up_after={options.give_up_after:g}; "
            "one attempt would outlast the patience for all of them"
        )
    # An app-wide skip result is no contradiction in a task that does something else.
    skips = options.on_conflict == "skip" or callable(options.on_conflict)
    if "skip_result" in given and not skips:
        return (
            f"lock_skip_result is set, but lock_on_conflict={options.on_conflict!r} never skips; "
            "use lock_on_conflict='skip' or remove lock_skip_result"
        )
    return None


def _key(value: Any) -> Any:
    forms = value if isinstance(value, list | tuple) and value else [value]
    if value is True or all(isinstance(form, str) or callable(form) for form in forms):
        return value
    raise ConfigurationError("is not a key; give a template, a function, a list of these, or True")


def _mode(value: Any) -> str:
    if isinstance(value, str) and value.startswith("until_"):
        raise ConfigurationError(f"{NOT_IN_THIS_VERSION}; use 'while_executing'")
    return str(_one_of("while_executing")(value))


def _on_conflict(value: Any) -> Any:
    if value in ("existing", "replace"):
        raise ConfigurationError(
            f"{NOT_IN_THIS_VERSION}; use requeue, skip, reject, raise or a function"
        )
    return _one_of("requeue", "skip", "reject", "raise", function=True)(value)


def _retry(value: Any) -> Any:
    if isinstance(value, wait_base | BaseRetrying) and not isinstance(value, AsyncRetrying):
        return value
    raise ConfigurationError(
        "is not a retry policy; give a tenacity wait, such as "
        "tenacity.wait_random_exponential(max=60), or a tenacity.Retrying"
    )


def _one_of(*names: str, function: bool = False) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if value in names or (function and callable(value)):
            return value
        choices = ", ".join(map(repr, names)) + (" or a function" if function else "")
        raise ConfigurationError(f"is not a choice here; use {choices}")

    return check


#: For each option, the check that returns its value in normal form. What it raises reads
#: on from the option's name and value.
OPTIONS: dict[str, Callable[[Any], Any]] = {
    "key": _key,
    "mode": _mode,
    "ttl": seconds(SHORTEST_TTL),
    "wait": seconds(0),
    "retry": _retry,
    "on_conflict": _on_conflict,
    "skip_result": lambda value: value,
    "give_up_after": seconds(0),
    "on_unavailable": _one_of("requeue", "raise", "run_unlocked"),
    "on_lost": _one_of("interrupt", "flag", function=True),
    "max_hold": seconds(SHORTEST_TTL),
    "at_least_for": seconds(0),
}
PUBLISH_ONLY = ("queue_ttl", "publish_grace", "window", "dedupe_window")
