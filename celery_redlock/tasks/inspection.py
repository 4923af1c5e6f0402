"""
Inspection of the lock of a call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from celery_redlock.core import LockInfo
from celery_redlock.core.client_label import process_of
from celery_redlock.errors import ConfigurationError
from celery_redlock.protocol.keys import Key, given_back, places_of, slot_number
from celery_redlock.tasks.border import TaskLike
from celery_redlock.tasks.config.client import client_for, lock_keys
from celery_redlock.tasks.message.node_keys import publish_keys, stop_request_keys
from celery_redlock.tasks.message.owner_label import parse_owner
from celery_redlock.tasks.rules.facts import Role

FOREIGN = "foreign"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """
    The holder of a lock, from a quorum of nodes.

    Attributes:
        key: the lock key as its task names it.
        owner: the owner value.
        state: `queued` (the message waits for a worker), `running`, `finished` (the key only keeps
            others away for a while), or `foreign`: not a task of this package. A body that has
            ended within `lock_at_least_for` is still `running`.
        expires_in: seconds until the lock expires unless it is extended.
        task_id: the task's id. This and all below are None if the holder is foreign; but `host`,
            `pid` and `since` are known if a client outside Celery set no label.
        host: the worker's node name, or the publisher's host.
        pid: the process that acquired the lock.
        since: when it acquired the lock.
        token: the fencing token, while the task runs and the nodes agree on it.
        slot: which slot of a key with a limit; None for any other key.
    """

    key: str
    owner: str
    state: str
    expires_in: float
    task_id: str | None = None
    host: str | None = None
    pid: int | None = None
    since: datetime | None = None
    token: int | None = None
    slot: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LockUsage:
    """
    The holders of one key of a call, from a quorum of nodes.

    Attributes:
        key: the lock key as its task names it.
        slots: how many may hold it; 1 without a limit.
        holders: the holders, at most one per slot; for a key with a rate, the tasks to which it was
            granted within its period, each in the state that the task had then.
        next_free_in: seconds until a slot is free at the latest, unless its lock is extended; 0 if
            one is free now.
    """

    key: str
    slots: int
    holders: tuple[LockHolder, ...]
    next_free_in: float

    @property
    def free(self) -> int:
        """How many more may hold it."""
        return self.slots - len(self.holders)


def lock_usage(
    task: TaskLike, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[LockUsage, ...]:
    """
    Return the holders of each key of a call, and how many more may hold it.

    In a mode that locks at publish, a queued message may have other keys than a body.

    Errors as `lock_holder`.
    """
    client = client_for(task.app)
    keys = all_keys_of(task, args, kwargs)
    places = places_of(keys)
    held = dict(zip(places, client.inspect(places), strict=True))
    usage = []
    for key in keys:
        found = {place: info for place in key.places if (info := held[place])}
        waits = [max(0.0, info.expires_in) for info in found.values()]
        usage.append(
            LockUsage(
                key=key.text,
                slots=key.holders,
                holders=tuple(holder_from(key, place, info) for place, info in found.items()),
                next_free_in=min(waits) if len(found) == key.holders else 0.0,
            )
        )
    return tuple(usage)


def lock_holder(
    task: TaskLike, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> LockHolder | None:
    """
    Return the holder of the lock of a call, a running one before a queued one.

    For a key with a limit, one holder is returned; if the call also has a key without a limit, only
    while all slots are taken. A rate has no holders: `lock_usage` names the tasks that it counts.

    Raises:
        QuorumUnavailable: fewer nodes than a quorum replied.
        LockKeyError: the lock key cannot be made from the arguments.
        ConfigurationError: the task does not lock.
    """
    keys = given_back(all_keys_of(task, args, kwargs))
    places = places_of(keys)
    found = client_for(task.app).inspect(places) if places else ()
    held = {place: info for place, info in zip(places, found, strict=True) if info is not None}
    single = [key for key in keys if not key.is_shared]
    for key in (*single, *(key for key in keys if key.is_shared)):
        taken = [place for place in key.places if place in held]
        # While a slot is free, the holders of the others are not in the call's way.
        if taken and (len(taken) == key.holders or not single):
            return holder_from(key, taken[0], held[taken[0]])
    return None


def plan_of(task: TaskLike) -> Any:
    """Return the plan of a task that locks; `ConfigurationError` if it does not."""
    plan = task.redlock_plan
    if plan is None or plan.keys is None:
        raise ConfigurationError(
            f"Task {task.name} does not lock; give it a lock_key or another lock_ option."
        )
    return plan


def keys_of(task: TaskLike, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Key, ...]:
    """Return the lock keys of a call; errors as `lock_holder`."""
    plan_of(task)
    return lock_keys(client_for(task.app), task, args, kwargs)


def all_keys_of(task: TaskLike, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Key, ...]:
    """Return the lock keys of a call, then its keys for queued messages or stop requests."""
    options, keys = plan_of(task).options, keys_of(task, args, kwargs)
    waiting = publish_keys(options.mode_spec, keys)
    if options.stops:
        waiting = (*waiting, *stop_request_keys(keys))
    return tuple(dict.fromkeys((*keys, *waiting)))


def holder_from(key: Key, place: str, found: LockInfo) -> LockHolder:
    """
    Return the holder that the owner value of a key describes.

    Args:
        key: the key.
        place: the name on the nodes of the key, or of one of its slots.
        found: what a quorum of nodes has there.
    """
    owner = parse_owner(found.owner)
    process = owner or process_of(found.owner)
    # A queued message has no token: the worker that takes its lock over gets a new one.
    has_token = owner is not None and owner.role is Role.RUNNING
    return LockHolder(
        key=key.text,
        owner=found.owner,
        state=FOREIGN if owner is None else str(owner.role),
        expires_in=found.expires_in,
        task_id=None if owner is None else owner.task_id,
        host=None if process is None else process.host,
        pid=None if process is None else process.pid,
        since=None if process is None else datetime.fromtimestamp(process.since / 1e6, UTC),
        token=found.token if has_token else None,
        slot=None if owner is None else slot_number(place),
    )
