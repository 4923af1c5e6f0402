"""
The `lock_*` options of a task: defaults, meaning and the check of each.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from tenacity import AsyncRetrying, BaseRetrying
from tenacity.wait import wait_base

from celery_redlock.core import SHORTEST_TTL, Limit, Rate
from celery_redlock.core.functions import check_function
from celery_redlock.core.validation import LONGEST, as_seconds
from celery_redlock.errors import ConfigurationError
from celery_redlock.protocol.keys import MAX_SLOTS
from celery_redlock.protocol.texts import shortened
from celery_redlock.tasks.config.modes import MODES, Mode
from celery_redlock.tasks.config.policies import Policy, check_policies
from celery_redlock.tasks.config.skip_result import DESCRIBED
from celery_redlock.tasks.config.task_options import (
    LossPolicyName,
    ModeName,
    OverlapPolicyName,
    UnavailablePolicyName,
)

__all__ = [
    "NONE_IS_A_VALUE",
    "OPTIONS",
    "PER_TASK",
    "PREFIX",
    "LockOptions",
    "almost_option",
    "check_option",
    "seconds",
    "shown",
    "unknown_name",
]

PREFIX = "lock_"
#: Options that no setting gives to all tasks.
PER_TASK = frozenset({"limit", "rate"})
#: Options of which None is a value; of all others it means that they are not set here.
NONE_IS_A_VALUE = frozenset({"skip_result"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOptions:
    """
    The checked options of one task; durations in seconds.

    The reference of task options prints this text. `lock_on_conflict` has two fields, `run_policy`
    and `publish_policy`, which are printed one after the other.

    Attributes:
        key: Key of the lock: a template over the task's arguments such as
            `"account:{account_id}"`, a function of the arguments, or a list of these, of which the
            task acquires all keys or none. `True`: the task's name and a digest of all arguments.
            Tasks with one key exclude each other, but no call of one is a duplicate of another's.
            A placeholder may read a part, `{order[customer][id]}` or `{order.id}`, and refuses
            `None`; `{account_id!s}` takes it. A function gets the arguments as JSON returns them.
            A list may also have a `Limit` and a `Rate`, each with a template of its own.
        limit: How many tasks may hold the key at once, from 1 to 128: a number, or a function of
            the arguments. Without a `lock_key`, the key is the task's name. It may be raised at any
            time. Where it is lowered, those that run end as they would, and until then more may
            run. The body's slot is `self.lease.slot`.
        rate: How many tasks may get the key in a time, wherever that begins, as Celery writes it:
            `"100/m"`, `"10/s"`, `"5/h"`; at most 128. Counted are starts, or calls in the modes
            that acquire the lock at publish and hold it until the body. A message beyond it is
            requeued to when it is its turn, in the order in which messages asked. Without a
            `lock_key`, the key is the task's name; without a `lock_limit`, any number of tasks that
            got the key run at once.
        mode: When the lock is held, see the table of modes.
        ttl: TTL of the lock, from 0.2 s to `redlock_max_ttl`. The watchdog extends the lock while
            the body runs, so the TTL limits how long a crashed worker blocks the key, not how long
            a body may run.
        queue_ttl: How long a lock that the publisher acquired waits for a worker, counted from the
            message's `eta` or `countdown`. The message's `expires` ends it earlier.
        publish_grace: TTL of that lock until the message has been sent. A publisher that dies in
            between blocks the key no longer than this.
        window: `until_expired` only: how long the key stays taken, counted from when the task is
            due.
        dedupe_window: How long workers recognise a redelivery of a finished message.
        wait: How long a worker process retries before it applies `lock_on_conflict`; at most half
            of the task's time limit. `None`: 0.5 s; a message that would be requeued waits for up
            to 0.3 s, and only while bodies are short and few others have waited longer. A message
            in its queue costs no process, and the release wakes it.
        retry: Pause between these attempts: a tenacity wait, or a whole `tenacity.Retrying`.
            `None`: full jitter, 10 to 250 ms.
        run_policy: Policy of a worker that finds the lock held by another task. `requeue`: send the
            message back to its queue with the same id and a jittered delay; `max_retries` does not
            count this. `skip`: end the task with `lock_skip_result`. `reject`: reject the message
            to the dead letter queue; needs `acks_late`. `raise`: fail with `LockContended`.
        publish_policy: Policy of a publisher for a duplicate, in the modes that acquire the lock
            at publish. `existing`: return the result of the existing task. `raise`: raise
            `DuplicateTask`. `replace`: replace an existing task that is still queued. A duplicate
            that must be sent, such as a member of a chord, ends in the worker: `existing` skips it,
            `raise` fails it with `DuplicateTask`, `replace` requeues it. The value may be a
            function of task and error that returns a policy; `{"publish": ..., "run": ...}` sets
            both.
        skip_result: Result of a skipped task, also passed to the next task of its chain. The
            default names the reason; `celery_redlock.is_skipped(result)` recognises it. It counts
            as true; `None` is possible, and then a skipped run looks like one that returned
            nothing.
        give_up_after: How long a task waits for its lock over all requeues. Then it fails with
            `LockNotAcquired`.
        requeue_max: Longest delay of a requeued message, after which it looks for its lock although
            no release has woken it; never longer than `lock_ttl`.
        fair: The message that has waited longest gets the lock next. One that arrives later does
            not take a free key that another waits for. A message that does not come within 0.5 s
            of its wake-up, because its worker was lost or busy, is passed. All tasks with the key
            need the option.
        on_unavailable: Policy of a worker when fewer nodes than a quorum answer: `requeue`, `raise`
            (`QuorumUnavailable`) or `run_unlocked`.
        on_lost: Reaction to the loss of the lock while the body runs. `interrupt`: `LeaseLost` is
            raised in the body. `flag`: only `self.lease.is_valid` turns false. Or a function of
            task and lease that returns one of these.
        max_hold: How long the watchdog extends the lock, so that a body that hangs does not hold
            its key indefinitely.
        at_least_for: Minimum time that the key stays taken, even if the body ends earlier.
        overlap: Policy for a scheduled run that finds the lock held; other runs use
            `lock_on_conflict`. `forbid`: skip the run. `queue`: requeue it until the lock is free;
            waiting runs are not ordered. `replace`: ask the task's older run to
            stop, by its `lock_on_lost`, and start after it has ended; it is notified within
            `lock_ttl / 3`. `allow`: run without a lock beside it.
        starting_deadline: Skip a scheduled run that would start later than this after its due time,
            time spent waiting for its lock included. The entry's `countdown` counts as lateness.
    """

    key: Any = None
    limit: Any = None
    rate: Any = None
    mode: str = "while_executing"
    ttl: float = 30.0
    queue_ttl: float = 3600.0
    publish_grace: float = 10.0
    window: float | None = None
    dedupe_window: float = 3600.0
    wait: float | None = None
    retry: wait_base | BaseRetrying | None = None
    run_policy: Policy = "requeue"
    publish_policy: Policy = "existing"
    skip_result: Any = DESCRIBED
    give_up_after: float = 3600.0
    requeue_max: float = 60.0
    fair: bool = False
    on_unavailable: str = "requeue"
    on_lost: str | Callable[..., Any] = "interrupt"
    max_hold: float = 86400.0
    at_least_for: float = 0.0
    overlap: str | None = None
    starting_deadline: float | None = None

    @property
    def mode_spec(self) -> Mode:
        """The properties of the task's mode."""
        return MODES[self.mode]


def check_option(name: str, value: Any, label: str) -> Any:
    """Return the normal form of an option's value; `label` begins the `ConfigurationError`."""
    try:
        return OPTIONS[name](value)
    except ConfigurationError as exc:
        raise ConfigurationError(f"{label}={shown(value)} {exc}.") from None


def shown(value: Any) -> str:
    """Return a value as messages print it, of bounded length."""
    if inspect.isfunction(value):
        return value.__qualname__
    try:
        return shortened(repr(value))
    except ValueError:
        return "a number of thousands of digits"  # Python refuses to print it


#: From this likeness on a name is an option with a letter missing.
_MISSPELT = 0.9


def unknown_name(name: str, prefix: str, known: Iterable[str]) -> str:
    """Return a message about an unknown name that suggests the closest known one."""
    # Compared without the prefix that all names share, which would make any two look alike.
    close = difflib.get_close_matches(name.removeprefix(prefix), known := sorted(known), n=1)
    choices = ", ".join(prefix + choice for choice in known)
    hint = f"did you mean {prefix}{close[0]}?" if close else f"the names are: {choices}."
    return f"{name} is unknown; {hint}"


def almost_option(name: str) -> str | None:
    """
    Return the option that a name without the prefix was surely meant to be, if any.

    A name that is longer than an option (`clock_key`) may be an attribute of the application.
    """
    if name.startswith((PREFIX, "_")):
        return None
    bare = name.lower().replace("_", "")
    for option in (PREFIX + known for known in OPTIONS):
        if bare in (option.replace("_", ""), f"red{option.replace('_', '')}"):
            return option
        is_shorter = len(option) - 2 <= len(name) <= len(option)
        if is_shorter and difflib.SequenceMatcher(None, name, option).ratio() >= _MISSPELT:
            return option
    return None


def seconds(minimum: float) -> Callable[[Any], float]:
    """Return a check for a duration, given as seconds or timedelta, of at least `minimum`."""

    def check(value: Any) -> float:
        found = as_seconds(value)
        if found is None or math.isnan(found):
            raise ConfigurationError("is not a duration; give seconds as a number, or a timedelta")
        if found > LONGEST:
            raise ConfigurationError("is out of range; give at most 100 years")
        if found < minimum:
            raise ConfigurationError(f"is out of range; give at least {minimum:g} seconds")
        return found

    return check


def _key(value: Any) -> Any:
    forms = value if isinstance(value, list | tuple) and value else [value]
    if value is True or all(
        isinstance(form, str | Limit | Rate) or callable(form) for form in forms
    ):
        return value
    raise ConfigurationError(
        "is not a key; give a template, a function, a Limit, a Rate, a list of these, or True"
    )


def _limit(value: Any) -> Any:
    if callable(value):
        return value
    try:
        return Limit("key", value).as_key().slots
    except ConfigurationError:
        raise ConfigurationError(
            f"is no limit; give a whole number from 1 to {MAX_SLOTS}, or a function of the "
            "arguments"
        ) from None


def _rate(value: Any) -> Any:
    try:
        Rate("key", value).as_key()
    except ConfigurationError as exc:
        raise ConfigurationError(str(exc).partition(") ")[2].rstrip(".")) from None
    return value


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise ConfigurationError("is not a choice; give True or False")


def _retry(value: Any) -> Any:
    if isinstance(value, wait_base | BaseRetrying) and not isinstance(value, AsyncRetrying):
        return value
    raise ConfigurationError(
        "is not a retry policy; give a tenacity wait, such as "
        "tenacity.wait_random_exponential(max=60), or a tenacity.Retrying"
    )


def one_of(literal: Any, *, function: Sequence[str] = ()) -> Callable[[Any], Any]:
    """Return a check for one of the names, or else a function with these arguments."""
    names = get_args(literal)

    def check(value: Any) -> Any:
        if function and callable(value):
            return check_function(value, *function)
        if isinstance(value, str) and value in names:
            return value
        choices = ", ".join(map(repr, names)) + (" or a function" if function else "")
        raise ConfigurationError(f"is not a choice here; use {choices}")

    return check


#: The check of each option, which returns the value's normal form. The text of its
#: `ConfigurationError` continues "lock_ttl=5 ...".
OPTIONS: dict[str, Callable[[Any], Any]] = {
    "key": _key,
    "limit": _limit,
    "rate": _rate,
    "mode": one_of(ModeName),
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
    "requeue_max": seconds(1),
    "fair": _flag,
    "on_unavailable": one_of(UnavailablePolicyName),
    "on_lost": one_of(LossPolicyName, function=("task", "lease")),
    "max_hold": seconds(SHORTEST_TTL),
    "at_least_for": seconds(0),
    "overlap": one_of(OverlapPolicyName),
    "starting_deadline": seconds(1),
}
