"""
Options that cannot all be meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery_redlock.tasks.config.policies import misplaced

if TYPE_CHECKING:
    from celery_redlock.tasks.config.options import LockOptions

__all__ = ["contradiction"]


def contradiction(
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
    return _out_of_place(options, given)


def _out_of_place(options: LockOptions, given: Mapping[str, Any]) -> str | None:
    """
    Describe an option that the task's mode has no use for.

    Only what is said for this task counts: an app-wide default is meant for others, too.
    """
    rules = options.rules
    where = f"lock_mode={rules.name!r}"
    if rules.for_window and options.window is None:
        return f"{where} needs lock_window, the seconds for which the key stays taken; set it"
    if "window" in given and not rules.for_window:
        return f"lock_window goes with lock_mode='until_expired', not with {where}; remove it"
    for name in ("queue_ttl", "publish_grace"):
        if name in given and not rules.at_publish:
            return (
                f"lock_{name} is for a lock that is taken when the task is sent, which {where} "
                "does not do; remove it or use a mode that begins with until_"
            )
    if "queue_ttl" in given and rules.for_window:
        return f"lock_queue_ttl has no use in {where}, where lock_window says how long; remove it"
    for name in ("on_lost", "at_least_for"):
        if given.get(name) and not rules.in_body:
            return (
                f"lock_{name} is about the lock of a body, and in {where} the body has none; "
                "remove it or use 'until_executed' or 'until_and_while_executing'"
            )
    if given.get("at_least_for") and rules.for_window:
        return (
            f"lock_at_least_for has no use in {where}, where lock_window says how long; remove it"
        )
    if "overlap" in given and rules.at_publish:
        return (
            f"lock_overlap={options.overlap!r} is about runs that start while another has the "
            f"lock, and in {where} the lock is taken when the task is sent; remove one of the two "
            "(lock_mode='while_executing' is the default)"
        )
    if given.get("at_least_for") and options.overlap == "allow":
        return (
            f"lock_at_least_for={options.at_least_for:g} keeps the next run away, and "
            "lock_overlap='allow' lets every scheduled run in; remove one of the two or use "
            "lock_overlap='forbid'"
        )
    if "on_conflict" in given and (problem := misplaced(given["on_conflict"], rules)):
        return problem
    if "skip_result" in given and not _may_skip(options):
        mend = "lock_on_conflict='skip'" if rules.waits_at_run else "lock_on_conflict='existing'"
        policies = options.run_policy if not rules.at_publish else options.publish_policy
        return (
            f"lock_skip_result is set, but lock_on_conflict={policies!r} never skips; use "
            f"{mend} or remove lock_skip_result"
        )
    return None


def _may_skip(options: LockOptions) -> bool:
    rules = options.rules
    at_run = options.run_policy == "skip" or callable(options.run_policy)
    at_publish = options.publish_policy == "existing" or callable(options.publish_policy)
    if options.overlap in ("forbid", "replace") or options.starting_deadline is not None:
        return True
    return (rules.waits_at_run and at_run) or (rules.at_publish and at_publish)
