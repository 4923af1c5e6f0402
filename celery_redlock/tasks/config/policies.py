"""
`lock_on_conflict` and `lock_on_duplicate`: the name of a policy, or a function that returns one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from celery.exceptions import TaskPredicate

from celery_redlock.errors import ConfigurationError, LockContended
from celery_redlock.tasks.border import TaskLike
from celery_redlock.tasks.config.task_options import ConflictPolicyName, DuplicatePolicyName

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
