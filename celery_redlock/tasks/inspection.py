"""
Inspection of the lock of a call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from celery_redlock.core import LockInfo
from celery_redlock.core.client_label import client_of
from celery_redlock.errors import ConfigurationError
from celery_redlock.protocol.keys import (
    all_places,
    slot_count,
    slot_number,
    slots_of,
    without_rates,
)
from celery_redlock.tasks.config.client import redlock_for
from celery_redlock.tasks.message.in_words import lock_key_of
from celery_redlock.tasks.message.node_keys import publish_keys, stop_request_key
from celery_redlock.tasks.message.owner_label import Role, parse_owner

__all__ = ["LockHolder", "LockUsage", "holder_from", "lock_holder", "lock_usage", "node_keys_of"]
__all__ += ["plan_of"]

FOREIGN = "foreign"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """
    The holder of a lock, from a quorum of nodes.

    Attributes:
        key: the node key of the lock.
        owner: the owner value.
        state: `queued` (the message waits for a worker), `running`, `finished` (the key only keeps
            others away for a while), or `foreign`: not a task of this package. A body that has
            ended within `lock_at_least_for` is still `running`.
        expires_in: seconds until the lock expires unless it is extended.
        task_id: the task's id; None if foreign, as all below. But of a client outside Celery that
            has given no label, host, pid and since are known.
        host: the worker's node name, or the publisher's host.
        pid: the process that acquired the lock.
        since: when it acquired the lock.
        token: the fencing token, while the task runs and the nodes agree on it.
        slot: which slot of a key with a limit; None for another key.
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
        holders: at most so many; of a key with a rate, those that got it within its period, in the
            state in which they were then.
        next_free_in: seconds until a slot is free, at the latest, unless its lock is extended; 0
            where one is free.
    """

    key: str
    slots: int
    holders: tuple[LockHolder, ...]
    next_free_in: float

    @property
    def free(self) -> int:
        """How many more may hold it."""
        return self.slots - len(self.holders)


def lock_usage(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[LockUsage, ...]:
    """
    Return the holders of each key of a call, and how many more may hold it.

    A mode that locks at publish may have keys for queued messages beside those of bodies.

    Errors as `lock_holder`.
    """
    redlock = redlock_for(task.app)
    node_keys = node_keys_of(task, args, kwargs)
    places = all_places(node_keys)
    held = dict(zip(places, redlock.reservations.inspect(places), strict=True))
    usage = []
    for node_key in node_keys:
        found = {place: info for place in slots_of(node_key) if (info := held[place])}
        slots = slot_count(node_key)
        waits = [max(0.0, info.expires_in) for info in found.values()]
        usage.append(
            LockUsage(
                key=str(lock_key_of(redlock, redlock.user_key(node_key))),
                slots=slots,
                holders=tuple(holder_from(place, info) for place, info in found.items()),
                next_free_in=min(waits) if len(found) == slots else 0.0,
            )
        )
    return tuple(usage)


def lock_holder(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> LockHolder | None:
    """
    Return the holder of the lock of a call, a running one before a queued one.

    Of a key with a limit, it is one of several; where the call has a key without one as well, only
    while all slots are taken. A rate has no holders: `lock_usage` names the tasks that it counts.

    Raises:
        QuorumUnavailable: fewer nodes than a quorum answered.
        LockKeyError: the lock key cannot be made from the arguments.
        ConfigurationError: the task does not lock.
    """
    node_keys = without_rates(node_keys_of(task, args, kwargs))
    places = all_places(node_keys)
    found = redlock_for(task.app).reservations.inspect(places) if places else ()
    held = {place: info for place, info in zip(places, found, strict=True) if info is not None}
    single = [key for key in node_keys if slot_count(key) == 1]
    for node_key in (*single, *(key for key in node_keys if slot_count(key) > 1)):
        taken = [place for place in slots_of(node_key) if place in held]
        # A slot of another call is in nobody's way while one is free.
        if taken and (len(taken) == slot_count(node_key) or not single):
            return holder_from(taken[0], held[taken[0]])
    return None


def plan_of(task: Any) -> Any:
    """Return the plan of a task that locks; `ConfigurationError` if it does not."""
    plan = task.redlock_plan
    if plan is None or plan.keys is None:
        raise ConfigurationError(
            f"Task {task.name} does not lock; give it a lock_key or another lock_ option."
        )
    return plan


def node_keys_of(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return all node keys of a call, those of bodies first; errors as `lock_holder`."""
    plan, redlock = plan_of(task), redlock_for(task.app)
    keys = plan.keys.keys_for(args, kwargs)
    running = tuple(redlock.node_key(key) for key in keys)
    waiting = publish_keys(redlock, plan.options.mode_spec, keys)
    if plan.options.overlap == "replace":
        waiting = tuple(map(stop_request_key, running))
    return tuple(dict.fromkeys((*running, *waiting)))


def holder_from(node_key: str, found: LockInfo) -> LockHolder:
    """Return what the owner value of a key shows of its holder."""
    owner = parse_owner(found.owner)
    if owner is None:
        client = client_of(found.owner)
        return LockHolder(
            key=node_key,
            owner=found.owner,
            state=FOREIGN,
            expires_in=found.expires_in,
            host=None if client is None else client.host,
            pid=None if client is None else client.pid,
            since=None if client is None else datetime.fromtimestamp(client.since / 1e6, UTC),
        )
    return LockHolder(
        key=node_key,
        owner=found.owner,
        state=str(owner.role),
        expires_in=found.expires_in,
        task_id=owner.task_id,
        host=owner.host,
        pid=owner.pid,
        since=datetime.fromtimestamp(owner.since / 1e6, UTC),
        slot=slot_number(node_key),
        # A queued message has no token: the worker that takes its lock over gets a new one.
        token=found.token if owner.role is Role.RUNNING else None,
    )
