"""
Checks of a task's options against each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from celery_redlock.core import Limit, Rate
from celery_redlock.tasks.config.options import LockOptions, shown


def contradictions(
    options: LockOptions, explicit: Mapping[str, Any], max_ttl: float, acks_late: bool
) -> Iterator[str]:
    """
    Iterate over messages about options that contradict each other.

    Args:
        options: the task's options.
        explicit: the options that the task or a pattern sets.
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
    if options.wait is not None and options.wait > options.give_up_after:
        yield (
            f"lock_wait={options.wait:g} is above lock_give_up_after={options.give_up_after:g}; "
            "one attempt would take longer than all of them may; lower lock_wait"
        )
    if options.on_conflict == "reject" and options.mode_spec.waits_at_run and not acks_late:
        yield (
            "lock_on_conflict='reject' needs acks_late=True, because a message that was "
            "acknowledged before its task cannot be rejected; set it, or use 'raise'"
        )
    yield from _in_the_way_of_a_debounce(options)
    yield from _unused_options(options, explicit)


def _in_the_way_of_a_debounce(options: LockOptions) -> Iterator[str]:
    """Describe options with which the newest call of a burst would not be the one that runs."""
    if options.debounce is None:
        return
    mode = options.mode_spec
    if not mode.at_publish or mode.held_in_body:
        yield (
            "lock_debounce needs a key that the publisher acquires and that is free once the body "
            f"begins, so that the next burst may begin, and not lock_mode={mode.name!r}; remove "
            "lock_mode (the default is 'until_executing' here), or use "
            "'until_and_while_executing', whose bodies do not overlap"
        )
    if mode.at_publish and options.on_duplicate != "replace":
        yield (
            "lock_debounce lets the newer call replace the older one, and "
            f"lock_on_duplicate={shown(options.on_duplicate)} does not; remove it"
        )
    if mode.waits_at_run and not options.requeues:
        yield (
            f"lock_on_conflict={shown(options.on_conflict)} would drop the newest call, which "
            "lock_debounce promises to run, while an older body runs; remove it"
        )
    if options.starting_deadline is not None:
        yield (
            "lock_starting_deadline would skip a call that has replaced others, and lock_debounce "
            "promises that it runs; remove one of the two"
        )
    limited = any(isinstance(key, Limit | Rate) for key in options.key_forms)
    if limited or options.limit is not None or options.rate is not None:
        yield (
            "lock_debounce keeps one waiting call for each key, and a key with a limit or a rate "
            "may have several; remove the limit, and let the body send a second task that has it"
        )


def _unused_options(options: LockOptions, explicit: Mapping[str, Any]) -> Iterator[str]:
    """
    Describe options that the task has no use for.

    Only options that the task or a pattern sets count: an app's default is for other tasks, too.
    """
    mode = options.mode_spec
    where = f"lock_mode={mode.name!r}"
    if mode.for_window and options.window is None:
        yield f"{where} needs lock_window, the seconds for which the key stays taken; set it"
    if "window" in explicit and not mode.for_window:
        yield f"lock_window goes with lock_mode='until_expired', not with {where}; remove it"
    for name in ("queue_ttl", "on_duplicate"):
        if name in explicit and not mode.at_publish:
            yield (
                f"lock_{name} is for a lock that the publisher acquires, and in {where} it "
                "acquires none; remove it or use a mode that begins with until_"
            )
    if "on_conflict" in explicit and not mode.waits_at_run:
        yield (
            f"lock_on_conflict is for a lock that the worker acquires, and in {where} it acquires "
            "none; remove it or use lock_on_duplicate, the policy of the publisher"
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
    if explicit.get("on_conflict") == "stop" and _lets_several_in(options):
        yield (
            "lock_on_conflict='stop' asks the only holder of a key to stop, and a limit or a rate "
            "lets several have it; remove one of them, or use lock_on_conflict='skip'"
        )
    if explicit.get("on_conflict") == "stop" and explicit.get("fair"):
        yield (
            "lock_fair gives the lock to the message that has waited longest, and "
            "lock_on_conflict='stop' to the newest; remove one of them"
        )
    if "skip_result" in explicit and not _may_skip(options):
        policy, advice = f"lock_on_conflict={options.on_conflict!r}", "lock_on_conflict='skip'"
        if mode.at_publish:
            policy, advice = f"lock_on_duplicate={options.on_duplicate!r}", "'existing'"
        yield (
            f"lock_skip_result is set, but {policy} never skips; use {advice} or remove "
            "lock_skip_result"
        )


def _lets_several_in(options: LockOptions) -> bool:
    of_keys = any(
        isinstance(key, Rate) or (isinstance(key, Limit) and key.limit != 1)
        for key in options.key_forms
    )
    return of_keys or options.limit not in (None, 1) or options.rate is not None


def _may_skip(options: LockOptions) -> bool:
    mode = options.mode_spec
    at_run = options.on_conflict == "skip" or callable(options.on_conflict)
    at_publish = options.on_duplicate == "existing" or callable(options.on_duplicate)
    return (
        options.starting_deadline is not None
        or (mode.waits_at_run and at_run)
        or (mode.at_publish and at_publish)
    )
