"""
`lock_on_conflict`: one option for two moments, the publish and the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery_redlock.errors import ConfigurationError, LockContended
from celery_redlock.tasks.config.modes import Mode

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

PUBLISH = ("existing", "raise", "replace")
RUN = ("requeue", "skip", "reject", "raise")
SIDES = {"publish": PUBLISH, "run": RUN}


def check_policies(value: Any) -> Any:
    """Return a value of `lock_on_conflict`: one policy, or a mapping with one for each moment."""
    if isinstance(value, Mapping):
        if not value or set(value) - set(SIDES):
            raise ConfigurationError(
                "is not a choice here; a mapping has the names 'publish' and 'run'"
            )
        for side, policy in value.items():
            if not callable(policy) and policy not in SIDES[side]:
                raise ConfigurationError(
                    f"is not a choice: for {side!r} use {_listed(SIDES[side])}"
                )
        return dict(value)
    if callable(value) or (isinstance(value, str) and value in (*RUN, *PUBLISH)):
        return value
    raise ConfigurationError(
        f"is not a choice here; use {_listed(RUN)}, with a lock_mode that locks at publish "
        f"{_listed(PUBLISH)}, or {{'publish': ..., 'run': ...}}"
    )


def policies_for(value: Any, mode: Mode) -> dict[str, Policy]:
    """
    Return what a checked value says in a mode, by moment.

    A value that is good at both moments is meant for the publish, where the mode locks there. What
    has no place in the mode is left out.
    """
    if isinstance(value, Mapping):
        return {side: policy for side, policy in value.items() if side in _sides(mode)}
    for side in _sides(mode):
        if callable(value) or value in SIDES[side]:
            return {side: value}
    return {}


def unusable_policy(value: Any, mode: Mode) -> str | None:
    """Describe a value that the mode would leave out in part or whole, with the mend."""
    options = policies_for(value, mode)
    if len(options) == (len(value) if isinstance(value, Mapping) else 1):
        return None
    mend = " or ".join(f"at {side} use {_listed(SIDES[side])}" for side in _sides(mode))
    moment = (
        "takes no lock when it is sent" if not mode.at_publish else "settles all at its publish"
    )
    return (
        f"lock_on_conflict={value!r} has no place in lock_mode={mode.name!r}, which {moment}; "
        f"{mend}"
    )


def resolve_policy(task: Any, policy: Policy, error: LockContended, names: Sequence[str]) -> str:
    """
    Return the name of the policy to follow; a function is asked.

    Raises:
        ConfigurationError: it returned something else.
    """
    name = policy(task, error) if callable(policy) else policy
    if not isinstance(name, str) or name not in names:
        raise ConfigurationError(
            f"lock_on_conflict of task {task.name} returned {name!r}. It returns one of "
            f"{', '.join(map(repr, names))}, or raises."
        )
    return name


def _sides(mode: Mode) -> tuple[str, ...]:
    return (("publish",) if mode.at_publish else ()) + (("run",) if mode.waits_at_run else ())


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) + " or a function"
