"""
Changes to locks by hand: release one by force, revoke a queued call, pause a key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from celery import Celery, current_app

from celery_redlock._log import event_logger
from celery_redlock.core import Client, Limit, LockInfo, Rate
from celery_redlock.core.pausing import pause_lock, resume_lock
from celery_redlock.errors import AmbiguousCall, ConfigurationError
from celery_redlock.protocol.keys import Key, given_back, owner_label, places_of
from celery_redlock.protocol.texts import enumerated, shortened
from celery_redlock.tasks.border import TaskLike
from celery_redlock.tasks.config.client import client_for
from celery_redlock.tasks.inspection import LockHolder, all_keys_of, holder_from, keys_of, plan_of
from celery_redlock.tasks.message.node_keys import dedupe_key_of, publish_keys
from celery_redlock.tasks.message.owner_label import parse_owner
from celery_redlock.tasks.message.withdrawal import revoke, revoke_in_workers
from celery_redlock.tasks.rules.facts import Role

logger = event_logger(__name__)

#: The node keys that each owner value has, with the lock on each.
_Held = dict[str, dict[str, LockInfo]]


def force_release(
    task: TaskLike, args: Sequence[Any], kwargs: Mapping[str, Any], task_id: str | None = None
) -> bool:
    """
    Take the lock of a call away from its holder; return whether there was one.

    A rate is not changed: the calls that it counted have happened.

    Args:
        task: the task.
        args: the call's arguments.
        kwargs: the call's keyword arguments.
        task_id: take it only from the task with this id.

    Raises:
        AmbiguousCall: several hold a key with a limit, and `task_id` names none of them.
        QuorumUnavailable: fewer nodes than a quorum replied.
        LockKeyError: the lock key cannot be made from the arguments.
        ConfigurationError: the task does not lock.
    """
    client = client_for(task.app)
    keys = given_back(all_keys_of(task, args, kwargs))
    text_of = {place: key.text for key in keys for place in key.places}
    held = _held(client, keys)
    if task_id is not None:
        held = {value: places for value, places in held.items() if _is_of(value, task_id)}
    else:
        held = _in_the_way(held, keys)
        if not any(_single(keys) & places.keys() for places in held.values()):
            _check_one(task, held, keys, "release_lock")
    for value, places in held.items():
        for place in places:
            # The result is ignored: with a node down, fewer than a quorum may have had the key.
            client.evict(place, value)
            logger.warning(
                "task-lock-taken-away",
                "Lock %(key)r of task %(task)s is taken away from %(holder)r",
                key=text_of[place],
                task=task.name,
                holder=shortened(owner_label(value)),
            )
    return bool(held)


def revoke_queued(
    task: TaskLike, args: Sequence[Any], kwargs: Mapping[str, Any], task_id: str | None = None
) -> LockHolder | None:
    """
    Revoke the queued message that holds the lock of a call, and free the lock.

    Args:
        task: the task.
        args: the call's arguments.
        kwargs: the call's keyword arguments.
        task_id: revoke only the call with this id.

    Returns:
        The holder; None if no message was queued, or its body has begun.

    Raises:
        AmbiguousCall: several queued calls have the keys, and `task_id` names none of them.
        LockNotAcquired: fewer nodes than a quorum replied or agreed; the message may be revoked.
        LockKeyError: the lock key cannot be made from the arguments.
        ConfigurationError: the task's mode does not lock at publish.
    """
    plan, client = plan_of(task), client_for(task.app)
    keys = publish_keys(plan.options.mode_spec, keys_of(task, args, kwargs))
    if not keys:
        raise ConfigurationError(
            f"Task {task.name} does not lock at publish (lock_mode="
            f"{plan.options.mode_spec.name!r}), so no queued message holds the lock; revoke the "
            "task by its id."
        )
    calls = _queued_calls(client, task.name, keys, task_id)
    _check_one(task, calls, keys, "revoke_queued")
    for value, places in calls.items():
        owner, (place, found) = parse_owner(value), next(iter(places.items()))
        # The marker comes first: it ends the message even if no worker receives the revocation.
        marker_ttl = max(found.expires_in, 0.0) + plan.options.dedupe_window
        if owner is None or not revoke(client, owner, marker_ttl=marker_ttl):
            continue
        for taken in places:
            client.evict(taken, value)
        logger.info(
            "queued-task-revoked",
            "Task %(task)s[%(task_id)s] is revoked while it is queued",
            task=task.name,
            task_id=owner.task_id,
        )
        revoke_in_workers(task.app, owner.task_id)
        key = next(key for key in keys if place in key.places)
        return holder_from(key, place, found)
    return None


def pause(
    key: str | Limit | Rate, seconds: float | timedelta, *, app: Celery | None = None
) -> dict[str, str]:
    """
    Refuse a lock key to all tasks for a while; those that hold it keep it.

    In that time, calls are accepted, and unique ones still find their duplicates: publishers take
    their locks, but no body begins. Messages that need the key wait, whatever `lock_on_conflict`
    is, and come back when the pause ends. Guarantee, limit and errors as for `Redlock.pause`.

    Args:
        key: the lock key, as `lock_key` makes it; `task.lock_keys(...)` returns those of a call.
        seconds: how long.
        app: the app; by default the current one.

    Returns:
        The nodes that have not confirmed it, each with the reason; empty if all have.
    """
    return pause_lock(client_for(app or current_app), key, seconds)


def resume(key: str | Limit | Rate, *, app: Celery | None = None) -> bool:
    """
    End the pause of a lock key at once, and wake the messages that wait for it.

    Errors as for `Redlock.resume`.

    Args:
        key: the lock key, as for `pause`.
        app: the app; by default the current one.

    Returns:
        Whether it was paused.
    """
    return resume_lock(client_for(app or current_app), key)


def _held(client: Client, keys: Sequence[Key]) -> _Held:
    """Return the locks that a quorum has for these keys; one message has one owner value."""
    places = places_of(keys)
    held: _Held = {}
    found = client.inspect(places) if places else ()
    for place, info in zip(places, found, strict=True):
        if info is not None:
            held.setdefault(info.owner, {})[place] = info
    return held


def _single(keys: Sequence[Key]) -> set[str]:
    """Return the node keys of the keys that only one task may hold."""
    return set(places_of(key for key in keys if not key.is_shared))


def _in_the_way(held: _Held, keys: Sequence[Key]) -> _Held:
    """Return the locks that keep a call from its keys, as `lock_holder` chooses them."""
    single = _single(keys)
    if not single:
        return held
    taken = {place for places in held.values() for place in places}
    # If a key without a limit is held, only its holders count, not those of full limited keys.
    full = set(places_of(key for key in keys if taken.issuperset(key.places)))
    return {
        value: places for value, places in held.items() if (single & taken or full) & places.keys()
    }


def _queued_calls(client: Client, name: str, keys: Sequence[Key], task_id: str | None) -> _Held:
    """Return the queued calls of a task that have all of these keys, or the one with this id."""
    # Rates do not count: a rate forgets a call after its period, and keeps calls that have ended.
    needed = given_back(keys) or tuple(keys)
    calls = {
        value: places
        for value, places in _held(client, keys).items()
        if (owner := parse_owner(value)) is not None
        and owner.role is Role.QUEUED
        and owner.runs(name)
        and (
            all(places.keys() & set(key.places) for key in needed)
            if task_id is None
            else owner.is_of(task_id)
        )
    }
    return calls if len(calls) < 2 else _not_begun(client, calls)


def _not_begun(client: Client, calls: _Held) -> _Held:
    marker_of = {
        value: dedupe_key_of(owner.marker)
        for value in calls
        if (owner := parse_owner(value)) is not None and owner.marker is not None
    }
    found = client.inspect(tuple(marker_of.values()))
    begun = {
        value
        for value, info in zip(marker_of, found, strict=True)
        if info is not None
        and ((owner := parse_owner(info.owner)) is None or owner.role is not Role.REVOKED)
    }
    return {value: places for value, places in calls.items() if value not in begun}


def _check_one(task: TaskLike, held: _Held, keys: Sequence[Key], method: str) -> None:
    """Raise `AmbiguousCall` if several tasks hold these keys."""
    if len(held) < 2:
        return
    owners = {value: parse_owner(value) for value in held}
    task_ids = [owner.task_id for owner in owners.values() if owner is not None]
    texts = dict.fromkeys(key.text for key in keys)
    holders = (
        owner_label(value) if owner is None else owner.task_id for value, owner in owners.items()
    )
    raise AmbiguousCall(
        f"{len(held)} holders have {enumerated(map(repr, texts))} of task {task.name}: "
        f"{enumerated(holders)}. Name the one that you mean: {method}(..., task_id="
        f"{task_ids[0] if task_ids else 'ID'!r}). `celery-redlock release` takes a key away from "
        "all of them.",
        task_ids,
    )


def _is_of(value: str, task_id: str) -> bool:
    owner = parse_owner(value)
    return owner is not None and owner.is_of(task_id)
