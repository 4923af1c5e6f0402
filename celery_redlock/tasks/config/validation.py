"""
Checks of a task's options against each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from celery_redlock.core import Limit, Rate
from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.config.policies import unusable_policy

__all__ = ["contradictions"]


def contradictions(
    options: LockOptions,
    resolved: Mapping[str, Any],
    explicit: Mapping[str, Any],
    max_ttl: float,
    acks_late: bool,
) -> Iterator[str]:
    """
    Iterate over messages about options that contradict each other.

    Args:
        options: of the task.
        resolved: the options that the task, a pattern or the app sets.
        explicit: those that the task or a pattern sets.
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
    if "wait" in resolved and (options.wait or 0.0) > options.give_up_after:
        yield (
            f"lock_wait={options.wait:g} is above lock_give_up_after={options.give_up_after:g}; "
            "one attempt would take longer than all of them may; lower lock_wait"
        )
    if options.run_policy == "reject" and options.mode_spec.waits_at_run and not acks_late:
        yield (
            "lock_on_conflict='reject' needs acks_late=True, because a message that was "
            "acknowledged before its task cannot be rejected; set it, or use 'raise'"
        )
    yield from _unused_options(options, explicit)


def _unused_options(options: LockOptions, explicit: Mapping[str, Any]) -> Iterator[str]:
    """
    Describe options that the task has no use for.

    Only what is resolved for this task counts: an app-wide default is meant for others, too.
    """
    mode = options.mode_spec
    where = f"lock_mode={mode.name!r}"
    if mode.for_window and options.window is None:
        yield f"{where} needs lock_window, the seconds for which the key stays taken; set it"
    if "window" in explicit and not mode.for_window:
        yield f"lock_window goes with lock_mode='until_expired', not with {where}; remove it"
    for name in ("queue_ttl", "publish_grace"):
        if name in explicit and not mode.at_publish:
            yield (
                f"lock_{name} is for a lock that the publisher acquires, and in {where} it "
                "acquires none; remove it or use a mode that begins with until_"
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
    if "overlap" in explicit and mode.at_publish:
        yield (
            f"lock_overlap={options.overlap!r} is for runs that find the lock held, and in "
            f"{where} the publisher acquires the lock; remove one of the two "
            "(lock_mode='while_executing' is the default)"
        )
    if options.overlap == "replace" and _lets_several_in(options):
        yield (
            "lock_overlap='replace' asks the only holder of a key to stop, and a limit or a rate "
            "lets several have it; remove one of them, or use lock_overlap='forbid'"
        )
    if explicit.get("at_least_for") and options.overlap == "allow":
        yield (
            f"lock_at_least_for={options.at_least_for:g} keeps the next run away, and "
            "lock_overlap='allow' lets every scheduled run in; remove one of the two or use "
            "lock_overlap='forbid'"
        )
    if "on_conflict" in explicit and (problem := unusable_policy(explicit["on_conflict"], mode)):
        yield problem
    if "skip_result" in explicit and not _may_skip(options):
        advice = "lock_on_conflict='skip'" if mode.waits_at_run else "lock_on_conflict='existing'"
        policies = options.run_policy if not mode.at_publish else options.publish_policy
        yield (
            f"lock_skip_result is set, but lock_on_conflict={policies!r} never skips; use "
            f"{advice} or remove lock_skip_result"
        )


def _lets_several_in(options: LockOptions) -> bool:
    keys = options.key if isinstance(options.key, list | tuple) else [options.key]
    of_keys = any(
        isinstance(key, Rate) or (isinstance(key, Limit) and key.limit != 1) for key in keys
    )
    return of_keys or options.limit not in (None, 1) or options.rate is not None


def _may_skip(options: LockOptions) -> bool:
    mode = options.mode_spec
    at_run = options.run_policy == "skip" or callable(options.run_policy)
    at_publish = options.publish_policy == "existing" or callable(options.publish_policy)
    if options.overlap in ("forbid", "replace") or options.starting_deadline is not None:
        return True
    return (mode.waits_at_run and at_run) or (mode.at_publish and at_publish)
