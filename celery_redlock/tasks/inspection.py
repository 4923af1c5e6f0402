"""
Who has a task's lock, and taking it away: for people who own the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from celery.utils.log import get_logger

from celery_redlock.core import LockInfo
from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.config.client import redlock_for
from celery_redlock.tasks.message.node_keys import publish_keys, stop_request_key
from celery_redlock.tasks.message.owner_label import Role, parse_owner
from celery_redlock.tasks.message.withdrawal import revoke_in_workers, withdraw

__all__ = ["LockHolder", "force_release", "lock_holder", "revoke_queued"]

logger = get_logger(__name__)

FOREIGN = "foreign"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """
    Who has a lock, as a quorum of nodes tells it.

    Attributes:
        key: the lock's key as it stands on the nodes.
        owner: the value that marks it there.
        state: `queued` (its message waits for a worker), `running`, `finished` (the key only keeps
            others away for a while), or `foreign`: no task of this package. A body that has ended
            within `lock_at_least_for` is still `running`.
        expires_in: seconds until it ends unless it is renewed.
        task_id: the task's id; None where foreign, as all below.
        host: the worker's node name, or the publisher's host.
        pid: the process that took the lock.
        since: when it did.
        token: its fencing token, while it runs and where the nodes agree on it.
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


def lock_holder(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> LockHolder | None:
    """
    Return who has the lock of a call: who runs, before who waits.

    Raises:
        QuorumUnavailable: too few nodes answered.
        LockKeyError: the arguments make no key.
        ConfigurationError: the task does not lock.
    """
    node_keys = _node_keys(task, args, kwargs)
    held = redlock_for(task.app).reservations.inspect(node_keys)
    for node_key, found in zip(node_keys, held, strict=True):
        if found is not None:
            return _holder(node_key, found)
    return None


def force_release(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """
    Take the lock of a call away from whoever has it; returns whether anybody had.

    Raises:
        QuorumUnavailable: too few nodes answered.
        LockKeyError: the arguments make no key.
        ConfigurationError: the task does not lock.
    """
    redlock = redlock_for(task.app)
    node_keys = _node_keys(task, args, kwargs)
    released = False
    for node_key, found in zip(node_keys, redlock.reservations.inspect(node_keys), strict=True):
        if found is not None:
            # Not what this returns: with a node down a quorum need not say that it had the key.
            redlock.reservations.evict(node_key, found.owner)
            released = True
            logger.warning("Lock %r of task %s is taken from %s", node_key, task.name, found.owner)
    return released


def revoke_queued(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> LockHolder | None:
    """
    Revoke the message that waits with the lock of a call, and free the lock.

    Returns:
        Who waited; None where nobody did, or its body has begun.

    Raises:
        LockNotAcquired: too few nodes answered or agreed; nothing was changed for sure.
        LockKeyError: the arguments make no key.
        ConfigurationError: the task takes no lock when it is sent.
    """
    plan, redlock = _plan(task), redlock_for(task.app)
    node_keys = publish_keys(redlock, plan.options.mode_spec, plan.keys.keys_for(args, kwargs))
    if not node_keys:
        raise ConfigurationError(
            f"Task {task.name} takes no lock when it is sent (lock_mode="
            f"{plan.options.mode_spec.name!r}), so no message waits with it; revoke the "
            "task by its id."
        )
    # A message has all of its keys, or those that are left of them, under one owner value.
    held: dict[str, list[tuple[str, LockInfo]]] = {}
    for node_key, found in zip(node_keys, redlock.reservations.inspect(node_keys), strict=True):
        if found is not None:
            held.setdefault(found.owner, []).append((node_key, found))
    revoked = None
    for value, keys in held.items():
        owner, (node_key, found) = parse_owner(value), keys[0]
        if owner is None or owner.role is not Role.QUEUED or not owner.runs(task.name):
            continue
        # The mark first: it ends the message also where no worker hears the revocation.
        marker_ttl = max(found.expires_in, 0.0) + plan.options.dedupe_window
        marked = withdraw(redlock, owner, Role.REVOKED, by=owner.task_id, marker_ttl=marker_ttl)
        if marked is None and owner.marker is not None:
            continue
        for key, _ in keys:
            redlock.reservations.evict(key, value)
        logger.info("Task %s[%s] is revoked while it waits", task.name, owner.task_id)
        revoke_in_workers(task.app, owner.task_id)
        revoked = revoked or _holder(node_key, found)
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


def _holder(node_key: str, found: LockInfo) -> LockHolder:
    owner = parse_owner(found.owner)
    if owner is None:
        return LockHolder(
            key=node_key, owner=found.owner, state=FOREIGN, expires_in=found.expires_in
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
        # A message on its way has no token: whoever takes the lock over gets a new one.
        token=found.token if owner.role is Role.RUNNING else None,
    )
