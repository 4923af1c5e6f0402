"""
`lock_on_conflict`: one option with two sides, publish and run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from celery.exceptions import TaskPredicate

from celery_redlock.core.functions import check_function
from celery_redlock.errors import ConfigurationError, LockContended
from celery_redlock.tasks.config.modes import Mode
from celery_redlock.tasks.config.task_options import PublishPolicyName, RunPolicyName

__all__ = [
    "PUBLISH",
    "RUN",
    "Policy",
    "check_policies",
    "policies_for",
    "resolve_policy",
    "unusable_policy",
]

Policy = str | Callable[..., Any]

PUBLISH: tuple[str, ...] = get_args(PublishPolicyName)
RUN: tuple[str, ...] = get_args(RunPolicyName)
SIDES = {"publish": PUBLISH, "run": RUN}
ARGUMENTS = ("task", "error")  #: of a policy that is a function


def check_policies(value: Any) -> Any:
    """Return a checked value of `lock_on_conflict`: a policy, or a mapping with one per side."""
    if isinstance(value, Mapping):
        if not value or set(value) - set(SIDES):
            raise ConfigurationError(
                "is not a choice here; a mapping has the names 'publish' and 'run'"
            )
        for side, policy in value.items():
            if callable(policy):
                check_function(policy, *ARGUMENTS)
            elif policy not in SIDES[side]:
                raise ConfigurationError(
                    f"is not a choice: for {side!r} use {_listed(SIDES[side])}"
                )
        return dict(value)
    if callable(value):
        return check_function(value, *ARGUMENTS)
    if isinstance(value, str) and value in (*RUN, *PUBLISH):
        return value
    raise ConfigurationError(
        f"is not a choice here; use {_listed(RUN)}, with a lock_mode that locks at publish "
        f"{_listed(PUBLISH)}, or {{'publish': ..., 'run': ...}}"
    )


def policies_for(value: Any, mode: Mode) -> dict[str, Policy]:
    """
    Return the policy for each side that a checked value sets in a mode.

    A value that is valid on both sides counts for the publish side if the mode has one. Policies
    for a side that the mode does not have are omitted.
    """
    if isinstance(value, Mapping):
        return {side: policy for side, policy in value.items() if side in _sides(mode)}
    for side in _sides(mode):
        if callable(value) or value in SIDES[side]:
            return {side: value}
    return {}


def unusable_policy(value: Any, mode: Mode) -> str | None:
    """Return a message if the mode has no use for a policy in the value."""
    usable = policies_for(value, mode)
    if len(usable) == (len(value) if isinstance(value, Mapping) else 1):
        return None
    advice = " or ".join(f"at {side} use {_listed(SIDES[side])}" for side in _sides(mode))
    reason = "acquires no lock at publish" if not mode.at_publish else "decides only at publish"
    return (
        f"lock_on_conflict={value!r} has no use in lock_mode={mode.name!r}, which {reason}; "
        f"{advice}"
    )


def resolve_policy(task: Any, policy: Policy, error: LockContended, names: Sequence[str]) -> str:
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
        exc.add_note(f"lock_on_conflict of task {task.name} raised this when asked about: {error}")
        raise
    if not isinstance(name, str) or name not in names:
        raise ConfigurationError(
            f"lock_on_conflict of task {task.name} returned {name!r}. It must return one of "
            f"{', '.join(map(repr, names))}."
        )
    return name


def _sides(mode: Mode) -> tuple[str, ...]:
    return (("publish",) if mode.at_publish else ()) + (("run",) if mode.waits_at_run else ())


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) + " or a function"
