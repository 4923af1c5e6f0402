"""
Releases of the lock of a call by force, and revocations of a queued call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery_redlock._log import event_logger
from celery_redlock.core import LockInfo, Redlock
from celery_redlock.errors import AmbiguousCall, ConfigurationError
from celery_redlock.protocol.keys import (
    all_places,
    owner_label,
    slot_count,
    slots_of,
    without_rates,
)
from celery_redlock.protocol.texts import enumerated, shortened
from celery_redlock.tasks.config.client import redlock_for
from celery_redlock.tasks.inspection import LockHolder, holder_from, node_keys_of, plan_of
from celery_redlock.tasks.message.in_words import lock_key_of
from celery_redlock.tasks.message.node_keys import dedupe_key_of, publish_keys
from celery_redlock.tasks.message.owner_label import Role, parse_owner
from celery_redlock.tasks.message.withdrawal import revoke, revoke_in_workers

__all__ = ["force_release", "revoke_queued"]

logger = event_logger(__name__)

#: Of each owner value, the places that it has.
_Held = dict[str, dict[str, LockInfo]]


def force_release(
    task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], task_id: str | None = None
) -> bool:
    """
    Take the lock of a call away from its holder; return whether there was one.

    A rate is not changed: what it has counted has happened.

    Args:
        task: the task.
        args: of the call.
        kwargs: of the call.
        task_id: only from the task with this id.

    Raises:
        AmbiguousCall: several hold a key with a limit, and `task_id` names none of them.
        QuorumUnavailable: fewer nodes than a quorum answered.
        LockKeyError: the lock key cannot be made from the arguments.
        ConfigurationError: the task does not lock.
    """
    redlock = redlock_for(task.app)
    node_keys = without_rates(node_keys_of(task, args, kwargs))
    held = _held(redlock, node_keys)
    if task_id is not None:
        held = {value: places for value, places in held.items() if _is_of(value, task_id)}
    else:
        held = _in_the_way(held, node_keys)
        if not any(slot_count(key) == 1 and key in of for of in held.values() for key in node_keys):
            _check_one(redlock, task, held, node_keys, "release_lock")
    for value, places in held.items():
        for place in places:
            # Its result does not count: with a node down, a quorum may not have had the key.
            redlock.reservations.evict(place, value)
            logger.warning(
                "task-lock-taken-away",
                "Lock %(key)r of task %(task)s is taken away from %(holder)r",
                key=lock_key_of(redlock, redlock.user_key(place)),
                task=task.name,
                holder=shortened(owner_label(value)),
            )
    return bool(held)


def revoke_queued(
    task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], task_id: str | None = None
) -> LockHolder | None:
    """
    Revoke the queued message that holds the lock of a call, and free the lock.

    Args:
        task: the task.
        args: of the call.
        kwargs: of the call.
        task_id: only the call with this id.

    Returns:
        The holder; None if no message was queued, or its body has begun.

    Raises:
        AmbiguousCall: several queued calls have the keys, and `task_id` names none of them.
        LockNotAcquired: fewer nodes than a quorum answered or agreed; the message may be revoked.
        LockKeyError: the lock key cannot be made from the arguments.
        ConfigurationError: the task's mode does not lock at publish.
    """
    plan, redlock = plan_of(task), redlock_for(task.app)
    node_keys = publish_keys(redlock, plan.options.mode_spec, plan.keys.keys_for(args, kwargs))
    if not node_keys:
        raise ConfigurationError(
            f"Task {task.name} does not lock at publish (lock_mode="
            f"{plan.options.mode_spec.name!r}), so no queued message holds the lock; revoke the "
            "task by its id."
        )
    calls = _queued_calls(redlock, task.name, node_keys, task_id)
    _check_one(redlock, task, calls, node_keys, "revoke_queued")
    for value, places in calls.items():
        owner, (node_key, found) = parse_owner(value), next(iter(places.items()))
        # The marker first: it ends the message even if no worker receives the revocation.
        marker_ttl = max(found.expires_in, 0.0) + plan.options.dedupe_window
        if owner is None or not revoke(redlock, owner, marker_ttl=marker_ttl):
            continue
        for place in places:
            redlock.reservations.evict(place, value)
        logger.info(
            "queued-task-revoked",
            "Task %(task)s[%(task_id)s] is revoked while it is queued",
            task=task.name,
            task_id=owner.task_id,
        )
        revoke_in_workers(task.app, owner.task_id)
        return holder_from(node_key, found)
    return None


def _held(redlock: Redlock, node_keys: Sequence[str]) -> _Held:
    """Return what a quorum of nodes holds of these keys; all keys of one message have one value."""
    places = all_places(node_keys)
    held: _Held = {}
    found = redlock.reservations.inspect(places) if places else ()
    for place, info in zip(places, found, strict=True):
        if info is not None:
            held.setdefault(info.owner, {})[place] = info
    return held


def _in_the_way(held: _Held, node_keys: Sequence[str]) -> _Held:
    """Return those without which a call would have its keys, as `lock_holder` chooses them."""
    single = {key for key in node_keys if slot_count(key) == 1}
    if not single:
        return held
    taken = {place for places in held.values() for place in places}
    # A key that one may have names its holder, of all that have a slot of the others.
    full = {
        place for key in node_keys if taken.issuperset(slots_of(key)) for place in slots_of(key)
    }
    return {
        value: places for value, places in held.items() if (single & taken or full) & places.keys()
    }


def _queued_calls(
    redlock: Redlock, name: str, node_keys: Sequence[str], task_id: str | None
) -> _Held:
    """Return the queued calls of a task that have all of these keys, or that with this id."""
    # A rate counts a call for its period only, and one that has ended, too.
    needed = without_rates(node_keys) or tuple(node_keys)
    calls = {
        value: places
        for value, places in _held(redlock, node_keys).items()
        if (owner := parse_owner(value)) is not None
        and owner.role is Role.QUEUED
        and owner.runs(name)
        and (
            all(places.keys() & set(slots_of(key)) for key in needed)
            if task_id is None
            else owner.is_of(task_id)
        )
    }
    return calls if len(calls) < 2 else _not_begun(redlock, calls)


def _not_begun(redlock: Redlock, calls: _Held) -> _Held:
    marker_of = {
        value: dedupe_key_of(owner.marker)
        for value in calls
        if (owner := parse_owner(value)) is not None and owner.marker is not None
    }
    found = redlock.reservations.inspect(tuple(marker_of.values()))
    begun = {
        value
        for value, info in zip(marker_of, found, strict=True)
        if info is not None
        and ((owner := parse_owner(info.owner)) is None or owner.role is not Role.REVOKED)
    }
    return {value: places for value, places in calls.items() if value not in begun}


def _check_one(
    redlock: Redlock, task: Any, held: _Held, node_keys: Sequence[str], method: str
) -> None:
    """Raise `AmbiguousCall` if several tasks hold these keys."""
    if len(held) < 2:
        return
    owners = {value: parse_owner(value) for value in held}
    task_ids = [owner.task_id for owner in owners.values() if owner is not None]
    keys = (lock_key_of(redlock, redlock.user_key(key)) for key in dict.fromkeys(node_keys))
    holders = (
        owner_label(value) if owner is None else owner.task_id for value, owner in owners.items()
    )
    raise AmbiguousCall(
        f"{len(held)} hold {enumerated(repr(str(key)) for key in keys)} of task {task.name}: "
        f"{enumerated(holders)}. Name the one that you mean: {method}(..., task_id="
        f"{task_ids[0] if task_ids else 'ID'!r}). `celery-redlock release` takes a key away from "
        "all.",
        task_ids,
    )


def _is_of(value: str, task_id: str) -> bool:
    owner = parse_owner(value)
    return owner is not None and owner.is_of(task_id)
