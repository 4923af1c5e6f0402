"""
Releases that people ask for: of one key, or of all locks of a task.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace

from celery_redlock._log import event_logger
from celery_redlock.admin.lock_list import LockEntry, Progress, entries, entries_of_key
from celery_redlock.admin.node_readers import TIMEOUT, Readers
from celery_redlock.core import Redlock
from celery_redlock.errors import QuorumUnavailable
from celery_redlock.protocol import Acknowledged, Failed, candidate_above, release
from celery_redlock.protocol.keys import owner_label
from celery_redlock.protocol.texts import shortened
from celery_redlock.tasks.message.owner_label import Role, label_id, parse_owner, task_digest
from celery_redlock.tasks.message.withdrawal import revoke as revoke_message
from celery_redlock.transport import clock

__all__ = ["release_lock", "release_task"]

logger = event_logger(__name__)

#: Seconds for which the nodes keep a revocation beyond the lock of the message.
REVOKED_FOR = 3600.0


def release_lock(
    redlock: Redlock,
    key: str,
    *,
    rates: bool = False,
    revoke: bool = False,
    task_id: str | None = None,
    only: Container[tuple[str, str]] | None = None,
    names: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
) -> list[LockEntry]:
    """
    Take a lock key away from all that hold it, on all nodes, and wake those that wait for it.

    That is the lock of the key, its slots if it has a limit, and the locks of messages in the
    queue, which will acquire new ones when they are received. A holder finds out at its next
    extension, and may write until then, beside a new holder; only a resource that checks fencing
    tokens refuses it. Of a lease on several keys, the other keys stay with it until then.

    Args:
        redlock: the client.
        key: the lock key as users write it.
        rates: also the slots of a key with a rate: what it has counted is forgotten, so that more
            may start within its period.
        revoke: also keep the queued messages that hold it from running, until an hour after their
            locks would have expired. One whose body has begun meanwhile keeps its lock.
        task_id: only what the task with this id has.
        only: only these, each by its `node_key` and `owner`, such as those that somebody has seen;
            None: all.
        names: as for `list_locks`.
        timeout: as for `list_locks`.

    Returns:
        The entries that were taken away, as they were before, each with what became of it
        `on_release`. A node that did not reply may keep it until it expires there.

    Raises:
        QuorumUnavailable: fewer nodes than a quorum answer. Either nothing was released, or the
            error names what became of it on each node.
        LockKeyError: it cannot be a key.
    """
    redlock.node_key(key)
    with contextlib.closing(Readers(redlock, timeout)) as nodes:
        found = entries_of_key(nodes, key, names or {}, rates=rates)
        slots = max((1 + entry.slot for entry in found if entry.slot is not None), default=0)
        taken = [
            _delete(nodes, entry, slots)
            for entry in found
            if _is_wanted(entry, task_id, only) and (not revoke or _revoke(redlock, entry))
        ]
    return [entry for entry in taken if entry is not None]


def release_task(
    redlock: Redlock,
    name: str,
    *,
    state: str | None = "queued",
    revoke: bool = False,
    task_id: str | None = None,
    only: Container[tuple[str, str]] | None = None,
    dry_run: bool = False,
    timeout: float = TIMEOUT,
    progress: Progress | None = None,
) -> Iterator[LockEntry]:
    """
    Take away all locks of the calls of one task that are in one state; yield each as it was before.

    For unique tasks after `celery purge`: the locks of the messages that are gone would keep
    further calls away for `lock_queue_ttl`. Nothing happens until the iterator is read. A lock that
    another owner has by then, such as the worker that has received the message, stays. Slots of
    rates stay, too: what they count has happened. Limit: a message that the broker still has, in a
    queue or for a worker that was killed, acquires its lock anew when it is received, and a further
    call may do its work before; `revoke` prevents that.

    Args:
        redlock: the client.
        name: the task's name.
        state: `queued`, `running` or `finished`, see `LockEntry`; None: any.
        revoke: as for `release_lock`.
        task_id: as for `release_lock`.
        only: as for `release_lock`.
        dry_run: yield what would be taken away, and change nothing.
        timeout: as for `list_locks`.
        progress: as for `list_locks`.

    Raises:
        QuorumUnavailable: fewer nodes than a quorum answer; what was yielded is released.
    """
    names = {task_digest(name): name}
    with contextlib.closing(Readers(redlock, timeout)) as nodes:
        for entry in entries(nodes, names=names, progress=progress):
            if entry.task is None or entry.is_rate or state not in (None, entry.state):
                continue
            if not _is_wanted(entry, task_id, only):
                continue
            if not dry_run and revoke and not _revoke(redlock, entry):
                continue
            taken = entry if dry_run else _delete(nodes, entry, 1 + (entry.slot or 0))
            if taken is not None:
                yield taken


def _is_wanted(
    entry: LockEntry, task_id: str | None, only: Container[tuple[str, str]] | None
) -> bool:
    if task_id is not None and entry.task_id != label_id(task_id):
        return False
    return only is None or (entry.node_key, entry.owner) in only


def _revoke(redlock: Redlock, entry: LockEntry) -> bool:
    """Keep the message of an entry from running, if it is queued; False if its body has begun."""
    owner = parse_owner(entry.owner)
    if owner is None or owner.role is not Role.QUEUED:
        return True
    until = max(0.0, entry.expires_in) + REVOKED_FOR
    # A rate counts a message that has begun as well.
    return revoke_message(redlock, owner, marker_ttl=until) or entry.is_rate


def _delete(nodes: Readers, entry: LockEntry, slots: int) -> LockEntry | None:
    """
    Delete a key where it still has its owner; return None if no node had it.

    Raises:
        QuorumUnavailable: too few nodes have replied, so a quorum may still have it.
    """
    # Nodes wake nobody where there is no token; that of a foreign owner is not known.
    number = max(1, candidate_above(entry.owner, clock.wall_us()))
    # With its number of slots, a node keeps the slot of a rate for its holder.
    limits = None if entry.slot is None or entry.is_rate else {entry.node_key: slots}
    votes = nodes.execute(release((entry.node_key,), entry.owner, number, limits=limits))
    taken = replace(entry, votes_on_release=votes)
    replied = [vote for vote in votes.values() if not isinstance(vote, Failed)]
    if len(replied) < nodes.quorum:
        by_node = "; ".join(f"{name}: {what}" for name, what in taken.on_release.items())
        raise QuorumUnavailable(
            f"The release of {shortened(entry.key)!r} is not confirmed: {len(replied)} of "
            f"{len(votes)} nodes replied, and it takes {nodes.quorum}. {by_node}. Try again.",
            entry.key,
            taken.on_release,
        )
    if not any(isinstance(vote, Acknowledged) for vote in replied):
        return None  # it ended, or passed on to another owner
    logger.warning(
        "lock-taken-away",
        "Lock %(key)r is taken away from %(holder)r",
        key=shortened(entry.key),
        holder=shortened(owner_label(entry.owner)),
    )
    return taken
