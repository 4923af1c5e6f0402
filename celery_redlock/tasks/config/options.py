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
from celery_redlock.tasks.config.modes import MODES, Mode
from celery_redlock.tasks.config.policies import Policy, check_policies, policies_for
from celery_redlock.tasks.config.validation import contradiction

if TYPE_CHECKING:
    from celery_redlock.tasks.config.settings import RedlockSettings

__all__ = [
    "LockOptions",
    "check_option",
    "default_options",
    "resolve_options",
    "seconds",
    "unknown_name",
]

PREFIX = "lock_"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOptions:
    """
    Everything that decides how one task locks; durations in seconds.

    What is said here about each option is what the README and the reference say. Of
    `lock_on_conflict` there are two parts, `run_policy` and `publish_policy`, which read on.

    Attributes:
        key: A template over the task's arguments such as `"account:{account_id}"`, a function of
            them, or a list of several keys that are taken all or none. `True`: the task's name and
            a digest of all arguments.
        mode: When the lock is held, see below.
        ttl: Length of the lease, from 0.2 up to `redlock_max_ttl`. The watchdog renews it, so it
            bounds how long the key stays taken after a crash, not how long a body may run.
        queue_ttl: How long a lock that was taken when the task was sent may wait for a worker,
            counted from its `eta` or `countdown` and ended by its `expires`.
        publish_grace: How long that lock lasts until the task has been sent; so a publisher that
            dies in between blocks nothing for long.
        window: `until_expired`: how long the key stays taken, from when the task is due.
        dedupe_window: How long a second delivery of a finished message is recognised.
        wait: How long a worker tries before it follows `lock_on_conflict`; at most half of the
            task's time limit.
        retry: How it waits meanwhile: a tenacity wait, or a whole `tenacity.Retrying`. Default:
            full jitter, 10 to 250 ms.
        run_policy: Somebody else holds the lock. In the worker: `requeue`: back into the queue with
            the same id and a jittered delay, `max_retries` untouched. `skip`: end with
            `lock_skip_result`. `reject`: to the dead letters, with `acks_late`. `raise`: fail with
            `LockContended`.
        publish_policy: When a unique task is sent: `existing`: the caller gets the result of the
            task that is there. `raise`: `DuplicateTask`. `replace`: the new task takes the place of
            one that still waits. A duplicate that had to be sent ends in the worker: by `existing`
            as a skip, by `raise` as a failure with `DuplicateTask`; by `replace` it waits. Or a
            function of task and error that returns one of these. `{"publish": ..., "run": ...}`
            says both.
        skip_result: Result of a skipped task; a chain's next step gets it.
        give_up_after: Patience over all requeues; then the task fails with `LockNotAcquired`.
        on_unavailable: Too few nodes answer. In the worker: `requeue`, `raise`
            (`QuorumUnavailable`) or `run_unlocked`.
        on_lost: The lock was lost while the body runs. `interrupt`: `LeaseLost` is raised in the
            body. `flag`: `self.lease.is_valid` turns false. Or a function of task and lease.
        max_hold: The watchdog renews for so long; a body that hangs does not hold for ever.
        at_least_for: Keep the key taken for so long, also if the body ends earlier.
        overlap: What a run that a schedule starts does while another has the lock, whoever sent
            that; other runs follow `lock_on_conflict`. `forbid`: it is skipped. `queue`: it waits,
            back in the queue; of several any may be next. `replace`: it asks the older one to stop,
            by `lock_on_lost`, and runs when that has ended; the older one hears of it within a
            third of `lock_ttl`. `allow`: it runs beside it, without a lock.
        starting_deadline: A run that a schedule starts is skipped if it comes so long after it was
            due, also if it waited for its lock until then. The entry's `countdown` counts as
            lateness.
    """

    key: Any = True
    mode: str = "while_executing"
    ttl: float = 30.0
    queue_ttl: float = 3600.0
    publish_grace: float = 10.0
    window: float | None = None
    dedupe_window: float = 3600.0
    wait: float = 0.5
    retry: wait_base | BaseRetrying | None = None
    run_policy: Policy = "requeue"
    publish_policy: Policy = "existing"
    skip_result: Any = None
    give_up_after: float = 3600.0
    on_unavailable: str = "requeue"
    on_lost: str | Callable[..., Any] = "interrupt"
    max_hold: float = 86400.0
    at_least_for: float = 0.0
    overlap: str | None = None
    starting_deadline: float | None = None

    @property
    def mode_spec(self) -> Mode:
        """What the task's mode means."""
        return MODES[self.mode]


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
        for name in OPTIONS
        if (value := _attribute(task, PREFIX + name)) is not None
    }
    explicit = {**settings.options_for(task.name), **own}
    if not explicit:
        return None
    options = _with_defaults(settings, explicit)
    problem = contradiction(options, {**settings.defaults, **explicit}, explicit, settings.max_ttl)
    if problem:
        raise ConfigurationError(f"{subject}: {problem}.")
    return options


def default_options(settings: RedlockSettings) -> LockOptions:
    """Return the options of a task that says nothing itself."""
    return _with_defaults(settings, {})


def _with_defaults(settings: RedlockSettings, explicit: Mapping[str, Any]) -> LockOptions:
    defaults = {field.name: field.default for field in fields(LockOptions)}
    # The built-in lease is no reason to refuse a smaller max_ttl.
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


def check_option(name: str, value: Any, label: str) -> Any:
    """Return the value of option `name` in its normal form, or raise `ConfigurationError`."""
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
            raise ConfigurationError(
                f"{subject}: {unknown_name(name, PREFIX, OPTIONS)} Names that start with {PREFIX} "
                "are kept for options."
            )


def _attribute(task: Any, name: str) -> Any:
    # Read without binding: a function given as an option is not a method of the task.
    value = inspect.getattr_static(task, name, None)
    return value.__func__ if isinstance(value, staticmethod) else value


def _key(value: Any) -> Any:
    forms = value if isinstance(value, list | tuple) and value else [value]
    if value is True or all(isinstance(form, str) or callable(form) for form in forms):
        return value
    raise ConfigurationError("is not a key; give a template, a function, a list of these, or True")


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
    "mode": _one_of(*MODES),
    "ttl": seconds(SHORTEST_TTL),
    "queue_ttl": seconds(1),
    "publish_grace": seconds(1),
    "window": seconds(SHORTEST_TTL),
    "dedupe_window": seconds(1),
    "wait": seconds(0),
    "retry": _retry,
    "on_conflict": check_policies,
    "skip_result": lambda value: value,
    "give_up_after": seconds(0),
    "on_unavailable": _one_of("requeue", "raise", "run_unlocked"),
    "on_lost": _one_of("interrupt", "flag", function=True),
    "max_hold": seconds(SHORTEST_TTL),
    "at_least_for": seconds(0),
    "overlap": _one_of("forbid", "queue", "replace", "allow"),
    "starting_deadline": seconds(1),
}
