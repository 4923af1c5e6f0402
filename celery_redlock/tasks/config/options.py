"""
The `lock_*` options of a task: defaults, meaning and the check of each; and its lock plan.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from tenacity import AsyncRetrying, BaseRetrying
from tenacity.wait import wait_base

from celery_redlock.core import SHORTEST_TTL, Limit, Rate
from celery_redlock.core.validation import LONGEST, as_seconds, check_function
from celery_redlock.errors import ConfigurationError
from celery_redlock.protocol.keys import MAX_SLOTS
from celery_redlock.protocol.texts import shortened
from celery_redlock.tasks.border import AppLike
from celery_redlock.tasks.config.option_values import (
    CHOICES,
    DESCRIBED,
    MODES,
    ConflictPolicyName,
    Debounce,
    DuplicatePolicyName,
    LossPolicyName,
    Mode,
    ModeName,
    Policy,
    UnavailablePolicyName,
)
from celery_redlock.tasks.keys.key_maker import KeyMaker

PREFIX = "lock_"
#: Seconds in which a message can be replaced at all: a call takes about as long to be sent.
SHORTEST_DEBOUNCE = 0.1
#: Options that no setting gives to all tasks.
PER_TASK = frozenset({"limit", "rate", "debounce"})
#: Options of which None is a value; for all others, None means that the option is not set.
NONE_IS_A_VALUE = frozenset({"skip_result"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOptions:
    """
    The checked options of one task; durations in seconds.

    The reference of task options prints this text. Each option is annotated with its check, which
    returns the normal form of a value; the text of its `ConfigurationError` continues
    "lock_ttl=5 ...".

    Attributes:
        key: Key of the lock: a template over the task's arguments such as `"account:{account_id}"`,
            a function of the arguments, or a list of these, of which the task acquires all keys or
            none. `True`: the task's name and a digest of all arguments. This is also the key of a
            task with other options, but without a limit or a rate. Tasks with the same key exclude
            each other, but a call of one task is never a duplicate of another task's call. A
            placeholder may read a part of an argument, `{order[customer][id]}` or `{order.id}`. A
            placeholder refuses `None`, unless it is written as `{account_id!s}`. A function gets
            the arguments as they are after a round trip through JSON. A list may also have a
            `Limit` and a `Rate`, each with its own template.
        limit: How many tasks may hold the key at once, from 1 to 128: a number, or a function of
            the arguments. Without a `lock_key`, the key is the task's name. You may raise it at any
            time. If you lower it, running tasks continue, so until they end, more tasks than the
            new limit may run. The body's slot is `self.lease.slot`.
        rate: Maximum number of grants per period, in any window of that length; a body begins a
            moment after its grant. Write `"10/s"`, `"100/m"`, `"5/h"`, `"1/d"` or `"20/10s"`. A
            period of more than 128 starts is cut into equal parts: `"500/m"` is 125 in any 15
            seconds. In `until_executing`, `until_executed` and `until_expired`, the rate counts
            calls instead of starts. A message beyond the rate is requeued until its turn; messages
            get their turns in the order in which they asked. Without a `lock_key`, the key is the
            task's name. A rate does not limit how many tasks run at once; combine it with
            `lock_limit`.
        mode: When the lock is held; see the table of modes.
        debounce: Run once after the last call of a burst: `5` runs the task after five seconds
            without another call for its key, with the newest arguments; `(5, 60)` runs it 60
            seconds after the first call at the latest, even if calls continue. Sets
            `lock_mode="until_executing"` and `lock_on_duplicate="replace"`; with
            `lock_mode="until_and_while_executing"`, bodies do not overlap. The publisher
            sets the message's ETA, so a call has no `countdown` or `eta` of its own.
        ttl: TTL of the lock, from 0.2 s to `redlock_max_ttl`. The watchdog extends the lock while
            the body runs, so the TTL limits how long a crashed worker blocks the key, not how long
            a body may run.
        queue_ttl: How long a lock that the publisher acquired waits for a worker, counted from when
            the message is sent, or from its ETA. An earlier `expires` of the message ends it.
        window: How long the key stays taken in the mode `until_expired`, counted from when the task
            is due.
        dedupe_window: How long workers recognise a redelivery of a finished message.
        wait: How long a worker process retries before it applies `lock_on_conflict`; at most half
            of the task's time limit. `None`: 0.5 s. With `None`, a message that would be
            requeued waits for at most 0.3 s, and only while bodies are short and few others go
            first; otherwise it goes back to its queue at once, where it occupies no process until
            the release wakes it.
        retry: Pause between the attempts of `lock_wait`: a tenacity wait, or a whole
            `tenacity.Retrying`. `None`: full jitter, 10 to 250 ms.
        on_conflict: Policy of a worker that finds the lock held by another task. `requeue`: send
            the message back to its queue with the same id and a jittered delay; `max_retries` does
            not count this. `skip`: end the task with `lock_skip_result`. `stop`: the newest call
            wins. Within a second, it asks the older body of the task to stop, in the way that the
            task's `lock_on_lost` sets, and starts when that body has ended; an older call that
            waits ends as replaced. `reject`: reject the message, which RabbitMQ moves to a dead
            letter queue and Redis discards; needs `acks_late`. `raise`: fail with `LockContended`,
            which `autoretry_for` does not retry: the body has not begun. Or a function of task and
            error that returns one of these.
        on_duplicate: Policy of a publisher for a duplicate, in the modes that acquire the lock at
            publish. `existing`: return the result of the existing task. `replace`: replace an
            existing task that is still queued. `raise`: raise `DuplicateTask`. Or a function of
            task and error that returns one of these. A duplicate that must be sent, such as a
            member of a chord, is left to the worker: `existing` skips it, `replace` requeues it,
            `raise` fails it with `DuplicateTask`.
        skip_result: Result of a skipped task, also passed to the next task of its chain. The
            default names the reason, and `celery_redlock.is_skipped(result)` recognises it; it is
            true in a boolean context. With `None`, a skipped run looks like one that returned
            nothing.
        give_up_after: How long a task waits for its lock over all requeues. Then it fails with
            `LockNotAcquired`.
        fair: Whether messages get the lock in order: by priority, then by how long they have
            waited. A message that arrives later does not take a free key that
            another waits for, unless it is more urgent. If a message does not come within 0.5 s of
            its wake-up, because its worker was lost or busy, the next one gets the lock. Set the
            option for all tasks with that key.
        on_unavailable: Policy of a worker when fewer nodes than a quorum reply: `requeue`, `raise`
            (`QuorumUnavailable`) or `run_unlocked`.
        on_lost: Reaction to the loss of the lock while the body runs. `interrupt`: `LeaseLost` is
            raised in the body. `flag`: only `self.lease.is_valid` turns false. Or a function of
            task and lease that returns one of these.
        max_hold: How long the watchdog extends the lock at most, so that a body that hangs does not
            hold its key indefinitely. After that the lock is lost, and `lock_on_lost` applies.
        at_least_for: Minimum time that the key stays taken, even if the body ends earlier; after
            a worker is killed, the key is free when `lock_ttl` has passed.
        starting_deadline: Skip a scheduled run that would start later than this after its due time,
            including the wait for its lock. The entry's `countdown` counts as lateness.
    """

    key: Annotated[Any, _key] = None
    limit: Annotated[Any, _limit] = None
    rate: Annotated[Any, _rate] = None
    mode: Annotated[str, one_of(ModeName)] = "while_executing"
    debounce: Annotated[Debounce | None, _debounce] = None
    ttl: Annotated[float, seconds(SHORTEST_TTL)] = 30.0
    queue_ttl: Annotated[float, seconds(1)] = 7200.0
    window: Annotated[float | None, seconds(SHORTEST_TTL)] = None
    dedupe_window: Annotated[float, seconds(1)] = 4200.0
    wait: Annotated[float | None, seconds(0)] = None
    retry: Annotated[wait_base | BaseRetrying | None, _retry] = None
    on_conflict: Annotated[
        Policy, one_of(ConflictPolicyName, function=("task", "error"), others=CHOICES)
    ] = "requeue"
    on_duplicate: Annotated[
        Policy, one_of(DuplicatePolicyName, function=("task", "error"), others=CHOICES)
    ] = "existing"
    skip_result: Annotated[Any, lambda value: value] = DESCRIBED
    give_up_after: Annotated[float, seconds(0)] = 3600.0
    fair: Annotated[bool, _flag] = False
    on_unavailable: Annotated[str, one_of(UnavailablePolicyName)] = "requeue"
    on_lost: Annotated[
        str | Callable[..., Any], one_of(LossPolicyName, function=("task", "lease"))
    ] = "interrupt"
    max_hold: Annotated[float, seconds(SHORTEST_TTL)] = 86400.0
    at_least_for: Annotated[float, seconds(0)] = 0.0
    starting_deadline: Annotated[float | None, seconds(1)] = None

    @property
    def key_forms(self) -> Sequence[Any]:
        """The templates, functions, limits and rates of `key`; None or True alone as it is."""
        return self.key if isinstance(self.key, list | tuple) else (self.key,)

    @property
    def requeues(self) -> bool:
        """Whether a message that has to wait for the lock always goes back to its queue."""
        return self.on_conflict in ("requeue", "stop")

    @property
    def stops(self) -> bool:
        """Whether a newer call may ask the body of an older one to stop."""
        return self.on_conflict == "stop" or callable(self.on_conflict)

    @property
    def mode_spec(self) -> Mode:
        """The properties of the task's mode."""
        return MODES[self.mode]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockPlan:
    """
    The lock of a task.

    Attributes:
        options: checked lock options.
        keys: makes the lock keys of a call; None for a task without lock options, which only has
            its messages deduplicated (`redlock_dedupe`).
        lost_signal: the signal that interrupts a body in the main thread.
        dedupe: whether `redlock_dedupe` is on.
    """

    options: LockOptions
    keys: KeyMaker | None
    lost_signal: int
    dedupe: bool = False

    @property
    def marks_messages(self) -> bool:
        """
        Whether each message has a dedupe marker, by which workers recognise its redeliveries.

        Such a task holds its keys until Celery has stored the result and sent the callbacks. A
        redelivery that ran earlier would send them a second time.
        """
        return self.dedupe or self.options.mode_spec.at_publish


def plans_with_keys(app: AppLike) -> Iterator[tuple[str, LockPlan, KeyMaker]]:
    """Iterate over the tasks of an app that have lock keys, by name, with plan and keys."""
    for name, task in sorted(app.tasks.items()):
        plan = getattr(task, "redlock_plan", None)
        if plan is not None and plan.keys is not None:
            yield name, plan, plan.keys


def checked(check: Callable[[Any], Any], value: Any, label: str) -> Any:
    """Return the normal form of a value; `label` begins the `ConfigurationError` of its check."""
    try:
        return check(value)
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


#: The options of other packages, and of schedulers, that lock tasks, and what replaces them.
OF_OTHERS = {
    "lock_expiry": "lock_queue_ttl",
    "lock_overlap": "lock_on_conflict",
    "once": "lock_mode='until_executed'",
    "raise_on_duplicate": "lock_on_duplicate='raise'",
    "unique_on": "lock_key",
    "unlock_before_run": "lock_mode='until_executing'",
}

#: A name that is at least this similar to an option is taken for a misspelling of it.
_MISSPELT = 0.9


def unknown_name(name: str, prefix: str, known: Iterable[str]) -> str:
    """Return a message about an unknown name that suggests the closest known one."""
    # Compared without the prefix that all names share, which would make any two look alike.
    close = difflib.get_close_matches(name.removeprefix(prefix), known := sorted(known), n=1)
    choices = ", ".join(prefix + choice for choice in known)
    hint = f"did you mean {prefix}{close[0]}?" if close else f"the names are: {choices}."
    return f"{name} is unknown; {hint}"


@cache
def almost_option(name: str) -> str | None:
    """
    Return the option that a name without the prefix was surely meant to be, if any.

    Cached: tasks share the names of nearly all their attributes.

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
            raise ConfigurationError(f"is out of range; give at least {minimum:g} s")
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
        return Limit("key", value).slots_and_period()[0]
    except ConfigurationError:
        raise ConfigurationError(
            f"is not a limit; give a whole number from 1 to {MAX_SLOTS}, or a function of the "
            "arguments"
        ) from None


def _rate(value: Any) -> Any:
    try:
        Rate("key", value).slots_and_period()
    except ConfigurationError as exc:
        raise ConfigurationError(str(exc).partition(") ")[2].rstrip(".")) from None
    return value


def _debounce(value: Any) -> Debounce:
    times = value if isinstance(value, list | tuple) else (value,)
    try:
        debounce = Debounce(*map(seconds(SHORTEST_DEBOUNCE), times))
    except (ConfigurationError, TypeError):
        raise ConfigurationError(
            "is not a debounce; give the seconds without another call, such as 5, or both these "
            "and the maximum since the first call, such as (5, 60), each a number or a timedelta "
            f"of {SHORTEST_DEBOUNCE:g} seconds or more"
        ) from None
    if debounce.at_most < debounce.quiet:
        raise ConfigurationError(
            "has a maximum that is shorter than the time without another call; give a longer one, "
            "such as (5, 60)"
        )
    return debounce


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


def one_of(
    literal: Any, *, function: Sequence[str] = (), others: Mapping[str, Sequence[str]] | None = None
) -> Callable[[Any], Any]:
    """
    Return a check for one of some names.

    Args:
        literal: the names.
        function: a function with these arguments is accepted as well.
        others: the names that other options take; the error about one of them refers to its option.
    """
    names = get_args(literal)

    def check(value: Any) -> Any:
        if function and callable(value):
            return check_function(value, *function)
        if isinstance(value, str) and value in names:
            return value
        takers = (option for option, theirs in (others or {}).items() if value in theirs)
        hint = "".join(f", but {option} has it" for option in takers)
        choices = ", ".join(map(repr, names)) + (" or a function" if function else "")
        raise ConfigurationError(f"is not a choice here{hint}; use {choices}")

    return check


def checks_of(cls: type) -> dict[str, Callable[[Any], Any]]:
    """
    Return the checks with which a class annotates its fields, by the names of the fields.

    The annotations are evaluated here, so they may name checks that their module defines later.
    """
    hints = get_type_hints(cls, include_extras=True)
    return {
        name: hint.__metadata__[0] for name, hint in hints.items() if get_origin(hint) is Annotated
    }


#: The check of each option.
OPTIONS = checks_of(LockOptions)
