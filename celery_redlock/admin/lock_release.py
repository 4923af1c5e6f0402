"""
Releases that an operator requests: of one key, or of all locks of a task.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace

from celery_redlock._log import event_logger
from celery_redlock.admin.lock_list import LockEntry, Progress, entries, entries_of_key
from celery_redlock.admin.node_readers import TIMEOUT, Readers
from celery_redlock.core import Client, Redlock, client_of
from celery_redlock.errors import QuorumUnavailable
from celery_redlock.protocol.commands import release
from celery_redlock.protocol.keys import Key, candidate_above, owner_label
from celery_redlock.protocol.texts import shortened
from celery_redlock.protocol.votes import Acknowledged, Failed
from celery_redlock.tasks.message.owner_label import label_id, parse_owner, task_digest
from celery_redlock.tasks.message.withdrawal import revoke as revoke_message
from celery_redlock.tasks.rules.facts import Role
from celery_redlock.transport import clock

logger = event_logger(__name__)

#: Seconds for which the nodes keep a revocation beyond the lock of the message.
REVOKED_FOR = 3600.0


def release_lock(
    redlock: Redlock | Client,
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
    Take a lock key away from all its holders, on all nodes, and wake its waiters.

    This releases the lock of the key, its slots if it has a limit, and the locks of messages in the
    queue, which acquire new ones when they are received. A holder finds out at its next extension,
    and may write until it reacts, beside a new holder; only a resource that checks fencing tokens
    refuses its writes. A lease on several keys keeps the other keys until that extension.

    Args:
        redlock: the client.
        key: the lock key as users write it.
        rates: also release the slots of a key with a rate. Its count is forgotten, so that more
            tasks may start within its period.
        revoke: also keep the queued messages that hold the key from running, until an hour after
            their locks would have expired. A message whose body has begun meanwhile keeps its lock.
        task_id: release only what the task with this id holds.
        only: pairs of `node_key` and `owner`, such as those that an operator has seen; release only
            these entries, and end a pause that is one of them. None: all but the key's pause.
        names: as for `list_locks`.
        timeout: as for `list_locks`.

    Returns:
        The released entries, as they were before; `on_release` has the result on each node. A node
        that did not reply may keep the lock until it expires there.

    Raises:
        QuorumUnavailable: fewer nodes than a quorum answer. Either nothing was released, or the
            error names the result on each node.
        LockKeyError: the key is invalid.
    """
    client_of(redlock).key_of(key)
    patient = client_of(redlock).patient(timeout)
    with contextlib.closing(Readers(redlock, timeout)) as nodes, patient as client:
        found = entries_of_key(nodes, key, names or {}, rates=rates)
        slots = max((1 + entry.slot for entry in found if entry.slot is not None), default=0)
        taken = [
            _delete(nodes, entry, slots)
            for entry in found
            if _is_wanted(entry, task_id, only) and (not revoke or _revoke(client, entry))
        ]
    return [entry for entry in taken if entry is not None]


def release_task(
    redlock: Redlock | Client,
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
    Release the locks of all calls of one task in a given state; yield each as it was before.

    Use it for unique tasks after `celery purge`: the locks of the purged messages would keep
    further calls away for `lock_queue_ttl`. Nothing happens until the iterator is read. A lock that
    has another owner by then, such as the worker that has received the message, stays. Slots of
    rates stay, too: what they count has happened. Limit: a message that the broker still has, in a
    queue or for a worker that was killed, acquires its lock again when it is received, and a
    further call may do the same work before it; `revoke` prevents that.

    Args:
        redlock: the client.
        name: the task's name.
        state: `queued`, `running` or `finished`, see `LockEntry`; None: any.
        revoke: as for `release_lock`.
        task_id: as for `release_lock`.
        only: as for `release_lock`.
        dry_run: yield what would be released, and change nothing.
        timeout: as for `list_locks`.
        progress: as for `list_locks`.

    Raises:
        QuorumUnavailable: fewer nodes than a quorum answer; what was yielded is released.
    """
    names = {task_digest(name): name}
    patient = client_of(redlock).patient(timeout)
    with contextlib.closing(Readers(redlock, timeout)) as nodes, patient as client:
        for entry in entries(nodes, names=names, progress=progress):
            if entry.task is None or entry.is_rate or state not in (None, entry.state):
                continue
            if not _is_wanted(entry, task_id, only):
                continue
            if not dry_run and revoke and not _revoke(client, entry):
                continue
            taken = entry if dry_run else _delete(nodes, entry, 1 + (entry.slot or 0))
            if taken is not None:
                yield taken


def _is_wanted(
    entry: LockEntry, task_id: str | None, only: Container[tuple[str, str]] | None
) -> bool:
    if task_id is not None and entry.task_id != label_id(task_id):
        return False
    if only is None and entry.is_pause:
        return False
    return only is None or (entry.node_key, entry.owner) in only


def _revoke(client: Client, entry: LockEntry) -> bool:
    """Keep the message of an entry from running, if it is queued; False if its body has begun."""
    owner = parse_owner(entry.owner)
    if owner is None or owner.role is not Role.QUEUED:
        return True
    until = max(0.0, entry.expires_in) + REVOKED_FOR
    # A rate's slot is released even so: it also counts bodies that have begun.
    return revoke_message(client, owner, marker_ttl=until) or entry.is_rate


def _delete(nodes: Readers, entry: LockEntry, slots: int) -> LockEntry | None:
    """
    Delete a key on each node where it still has its owner; return None if no node had it.

    Raises:
        QuorumUnavailable: too few nodes have replied, so a quorum may still have it.
    """
    # Nodes wake no waiter without a token, and the token of a foreign owner is not known.
    number = max(1, candidate_above(entry.owner, clock.wall_us()))
    deleted = Key.read(entry.node_key)
    if not deleted.stays and deleted.slot is not None:  # a node would keep a rate's slot
        deleted = replace(deleted, slots=slots)
    votes = nodes.execute(release((deleted,), entry.owner, number))
    taken = replace(entry, votes_on_release=votes)
    replied = [vote for vote in votes.values() if not isinstance(vote, Failed)]
    if len(replied) < nodes.quorum:
        by_node = "; ".join(f"{name}: {what}" for name, what in taken.on_release.items())
        raise QuorumUnavailable(
            f"The release of {shortened(entry.key)!r} is not confirmed: {len(replied)} of "
            f"{len(votes)} nodes replied, and a quorum is {nodes.quorum}. {by_node}. Try again.",
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
