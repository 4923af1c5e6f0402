"""
The values of lock options: their types, and those that are more than a number.

The types are for editors and type checkers; the checks in `options` take their choices from them.
The values that are more than a number are modes, debounces, policies and skip results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, NamedTuple, TypedDict, TypeGuard, Unpack, get_args

from celery.exceptions import TaskPredicate
from kombu.exceptions import SerializerNotInstalled
from kombu.serialization import dumps
from tenacity import BaseRetrying
from tenacity.wait import wait_base

from celery_redlock.core import Lease, Limit, Rate
from celery_redlock.errors import ConfigurationError, LockContended
from celery_redlock.tasks.border import AppLike, TaskLike

ModeName = Literal[
    "while_executing",
    "until_executing",
    "until_executed",
    "until_and_while_executing",
    "until_expired",
]
ConflictPolicyName = Literal["requeue", "skip", "stop", "reject", "raise"]
DuplicatePolicyName = Literal["existing", "replace", "raise"]
UnavailablePolicyName = Literal["requeue", "raise", "run_unlocked"]
LossPolicyName = Literal["interrupt", "flag"]

_Key = str | Limit | Rate | Callable[..., Any]
_Seconds = float | timedelta
_AskOnConflict = Callable[[Any, LockContended], str]


class TaskLockOptions(TypedDict, total=False):
    """
    The `lock_*` options of a task, as `app.task` and `redlock_tasks` take them.

    `None` leaves an option to `redlock_tasks`, the app's settings and the default; for
    `lock_skip_result`, it is the value.
    """

    lock_key: _Key | Sequence[_Key] | Literal[True] | None
    lock_limit: int | Callable[..., int] | None
    lock_rate: str | float | None
    lock_mode: ModeName | None
    lock_debounce: _Seconds | tuple[_Seconds, _Seconds] | None
    lock_ttl: _Seconds | None
    lock_queue_ttl: _Seconds | None
    lock_window: _Seconds | None
    lock_dedupe_window: _Seconds | None
    lock_wait: _Seconds | None
    lock_retry: wait_base | BaseRetrying | None
    lock_on_conflict: ConflictPolicyName | _AskOnConflict | None
    lock_on_duplicate: DuplicatePolicyName | _AskOnConflict | None
    lock_skip_result: Any
    lock_give_up_after: _Seconds | None
    lock_fair: bool | None
    lock_on_unavailable: UnavailablePolicyName | None
    lock_on_lost: LossPolicyName | Callable[[Any, Lease], str | None] | None
    lock_max_hold: _Seconds | None
    lock_at_least_for: _Seconds | None
    lock_starting_deadline: _Seconds | None


def lock_options(**options: Unpack[TaskLockOptions]) -> TaskLockOptions:
    """
    Return lock options as given; editors and type checkers know their names and values.

    `app.task` accepts any keyword, so a type checker cannot see a misspelled option there. The
    options are checked when the task is bound to its app, with this function or without it.

    Example:
        ```python
        @app.task(base=RedlockTask, **lock_options(lock_key="account:{account_id}", lock_ttl=30))
        def settle(account_id): ...


        app.conf.redlock_tasks = {"billing.*": lock_options(lock_key=True)}
        ```
    """
    return options


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """
    The properties of one value of `lock_mode`: when a task's key is taken and released.

    Attributes:
        name: the value.
        at_publish: the publisher acquires the lock, which travels with the message.
        in_body: the body runs under the lock, with a lease and a fencing token.
        own_queue_key: a queued message holds a key of its own, so that one task may be queued while
            another runs.
        for_window: the key stays taken for `lock_window`, even after the body has ended.
    """

    name: str
    at_publish: bool = True
    in_body: bool = True
    own_queue_key: bool = False
    for_window: bool = False

    @property
    def waits_at_run(self) -> bool:
        """Whether a worker may find the lock held by a task that is not a duplicate."""
        return not self.at_publish or self.own_queue_key

    @property
    def held_in_body(self) -> bool:
        """Whether a task has the key of its publisher while its body runs, not only until then."""
        return self.in_body and not self.own_queue_key

    def uses(self, option: str) -> bool:
        """Return whether an option, named without prefix, has an effect in this mode."""
        return _USES[option](self) if option in _USES else True


_USES: dict[str, Callable[[Mode], bool]] = {
    "window": lambda mode: mode.for_window,
    "at_least_for": lambda mode: mode.in_body and not mode.for_window,
    "on_conflict": lambda mode: mode.waits_at_run,
    "on_duplicate": lambda mode: mode.at_publish,
    "queue_ttl": lambda mode: mode.at_publish and not mode.for_window,
    "max_hold": lambda mode: mode.in_body,
    "on_lost": lambda mode: mode.in_body,
}


MODES = {
    mode.name: mode
    for mode in (
        Mode(name="while_executing", at_publish=False),
        Mode(name="until_executing", in_body=False),
        Mode(name="until_executed"),
        Mode(name="until_and_while_executing", own_queue_key=True),
        Mode(name="until_expired", for_window=True),
    )
}


class Debounce(NamedTuple):
    """
    The value of `lock_debounce`: how long a call waits for newer ones, in seconds.

    Attributes:
        quiet: how long no other call may follow it.
        at_most: how long a burst may last, counted from its first call.
    """

    quiet: float
    at_most: float = math.inf

    def __repr__(self) -> str:
        """Return it as the option is written."""
        return (
            f"{self.quiet:g}" if math.isinf(self.at_most) else f"({self.quiet:g}, {self.at_most:g})"
        )

    def due(self, made: float, first: float) -> float:
        """
        Return when a call is due: never before it was made, in seconds since the epoch.

        Args:
            made: when it was made.
            first: when the first call of its burst was made.
        """
        return min(made + self.quiet, max(made, first + self.at_most))


#: `lock_on_conflict` and `lock_on_duplicate`: the name of a policy, or a function that returns one.
Policy = str | Callable[..., Any]

#: The names that each option takes: a worker's first, then a publisher's.
CHOICES: dict[str, tuple[str, ...]] = {
    "lock_on_conflict": get_args(ConflictPolicyName),
    "lock_on_duplicate": get_args(DuplicatePolicyName),
}


def resolve_policy(task: TaskLike, option: str, policy: Policy, error: LockContended) -> str:
    """
    Return the name of the policy to apply; a policy that is a function is called.

    Raises:
        ConfigurationError: the function returned no policy name.
        Exception: it raised this, which gets a note that names it.
    """
    try:
        name = policy(task, error) if callable(policy) else policy
    except TaskPredicate:
        raise  # `task.retry()` and its like are how a function ends the task itself
    except Exception as exc:
        exc.add_note(f"{option} of task {task.name} raised this when asked about: {error}")
        raise
    if not isinstance(name, str) or name not in CHOICES[option]:
        raise ConfigurationError(
            f"{option} of task {task.name} returned {name!r}. It must return one of "
            f"{', '.join(map(repr, CHOICES[option]))}."
        )
    return name


class SkippedResult(TypedDict):
    """
    The result of a task that was skipped, unless it has a `lock_skip_result` of its own.

    It is a plain dict of strings, which every serializer and result backend keeps. It is true in a
    boolean context: code that tests `if result:` needs `is_skipped`, or `lock_skip_result=None`.

    Attributes:
        celery_redlock: `skipped`; `is_skipped` recognises the dict by it.
        reason: why the body did not run.
    """

    celery_redlock: Literal["skipped"]
    reason: str


class _Described:
    """The default of `lock_skip_result`; the reference shows this text."""

    def __repr__(self) -> str:
        return '{"celery_redlock": "skipped", "reason": "..."}'


DESCRIBED: Final = _Described()


def skip_result(value: Any, reason: str) -> Any:
    """Return the result of a skipped task whose `lock_skip_result` is this value."""
    return SkippedResult(celery_redlock="skipped", reason=reason) if value is DESCRIBED else value


def is_skipped(result: object) -> TypeGuard[SkippedResult]:
    """
    Return whether a result is that of a task that was skipped, not of one that ran.

    Limit: it does not recognise the result of a skipped task with its own `lock_skip_result`.

    Example:
        ```python
        @app.task
        def combine(results):  # the body of a chord
            return sum(result for result in results if not is_skipped(result))
        ```
    """
    return isinstance(result, dict) and result.get("celery_redlock") == "skipped"


def check_storable(value: Any, label: str, app: AppLike) -> None:
    """
    Check that the app's serializer for results takes a value.

    Raises:
        ConfigurationError: the serializer refuses it; `label` begins the text.
    """
    serializer = app.conf.result_serializer
    try:
        dumps(value, serializer=serializer)
    except SerializerNotInstalled:
        return  # no result at all can be stored, and Celery reports that
    except Exception as exc:
        raise ConfigurationError(
            f"{label}={value!r} cannot be stored with result_serializer={serializer!r} ({exc}); "
            "give a value that this serializer accepts, such as a str."
        ) from None
