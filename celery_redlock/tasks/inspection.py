"""
Inspection and forced release of the lock of a call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from celery_redlock._log import event_logger
from celery_redlock.core import LockInfo
from celery_redlock.core.client_label import client_of
from celery_redlock.errors import ConfigurationError
from celery_redlock.protocol.keys import (
    all_places,
    owner_label,
    slot_count,
    slot_number,
    slots_of,
    without_rates,
)
from celery_redlock.protocol.texts import shortened
from celery_redlock.tasks.config.client import redlock_for
from celery_redlock.tasks.message.in_words import lock_key_of
from celery_redlock.tasks.message.node_keys import publish_keys, stop_request_key
from celery_redlock.tasks.message.owner_label import Role, parse_owner
from celery_redlock.tasks.message.withdrawal import revoke_in_workers, withdraw

__all__ = ["LockHolder", "LockUsage", "force_release", "lock_holder", "lock_usage", "revoke_queued"]

logger = event_logger(__name__)

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
    node_keys = _node_keys(task, args, kwargs)
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

    A rate has no holders: `lock_usage` names the tasks that it counts.

    Raises:
        QuorumUnavailable: fewer nodes than a quorum answered.
        LockKeyError: the lock key cannot be made from the arguments.
        ConfigurationError: the task does not lock.
    """
    node_keys = all_places(without_rates(_node_keys(task, args, kwargs)))
    held = redlock_for(task.app).reservations.inspect(node_keys) if node_keys else ()
    for node_key, found in zip(node_keys, held, strict=True):
        if found is not None:
            return holder_from(node_key, found)
    return None


def force_release(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """
    Take the lock of a call away from its holder; return whether there was one.

    A rate is not changed: what it has counted has happened.

    Raises:
        QuorumUnavailable: fewer nodes than a quorum answered.
        LockKeyError: the lock key cannot be made from the arguments.
        ConfigurationError: the task does not lock.
    """
    redlock = redlock_for(task.app)
    node_keys = all_places(without_rates(_node_keys(task, args, kwargs)))
    evicted = redlock.reservations.evict_holders(node_keys) if node_keys else ()
    released = False
    for node_key, found in zip(node_keys, evicted, strict=True):
        if found is not None:
            released = True
            logger.warning(
                "task-lock-taken-away",
                "Lock %(key)r of task %(task)s is taken away from %(holder)r",
                key=lock_key_of(redlock, redlock.user_key(node_key)),
                task=task.name,
                holder=shortened(owner_label(found.owner)),
            )
    return released


def revoke_queued(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> LockHolder | None:
    """
    Revoke the queued message that holds the lock of a call, and free the lock.

    Returns:
        The holder; None if no message was queued, or its body has begun.

    Raises:
        LockNotAcquired: fewer nodes than a quorum answered or agreed; the message may be revoked.
        LockKeyError: the lock key cannot be made from the arguments.
        ConfigurationError: the task's mode does not lock at publish.
    """
    plan, redlock = _plan(task), redlock_for(task.app)
    keys = plan.keys.keys_for(args, kwargs)
    node_keys = all_places(publish_keys(redlock, plan.options.mode_spec, keys))
    if not node_keys:
        raise ConfigurationError(
            f"Task {task.name} does not lock at publish (lock_mode="
            f"{plan.options.mode_spec.name!r}), so no queued message holds the lock; revoke the "
            "task by its id."
        )
    # All keys of one message have the same owner value.
    held: dict[str, list[tuple[str, LockInfo]]] = {}
    for node_key, found in zip(node_keys, redlock.reservations.inspect(node_keys), strict=True):
        if found is not None:
            held.setdefault(found.owner, []).append((node_key, found))
    revoked = None
    for value, keys in held.items():
        owner, (node_key, found) = parse_owner(value), keys[0]
        if owner is None or owner.role is not Role.QUEUED or not owner.runs(task.name):
            continue
        # The marker first: it ends the message even if no worker receives the revocation.
        marker_ttl = max(found.expires_in, 0.0) + plan.options.dedupe_window
        marker = withdraw(redlock, owner, Role.REVOKED, by=owner.task_id, marker_ttl=marker_ttl)
        if marker is None and owner.marker is not None:
            continue
        for key, _ in keys:
            redlock.reservations.evict(key, value)
        logger.info(
            "queued-task-revoked",
            "Task %(task)s[%(task_id)s] is revoked while it is queued",
            task=task.name,
            task_id=owner.task_id,
        )
        revoke_in_workers(task.app, owner.task_id)
        revoked = revoked or holder_from(node_key, found)
    return revoked


def _plan(task: Any) -> Any:
    plan = task.redlock_plan
    if plan is None or plan.keys is None:
        raise ConfigurationError(
            f"Task {task.name} does not lock; give it a lock_key or another lock_ option."
        )
    return plan


def _node_keys(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    plan, redlock = _plan(task), redlock_for(task.app)
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
