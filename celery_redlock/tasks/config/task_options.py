"""
The `lock_*` options of a task as types, for editors and type checkers.

The checks in `options` take their choices from here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Literal, TypedDict, Unpack

from tenacity import BaseRetrying
from tenacity.wait import wait_base

from celery_redlock.core import Lease, Limit, Rate
from celery_redlock.errors import LockContended

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
