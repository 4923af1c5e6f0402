"""
Reports of a publisher about its lock nodes: an error, at most one log line a minute, and a counter.

A publisher does not probe its nodes. It reports what the connections of its own call have shown, so
the call takes no longer.
"""

from __future__ import annotations

import logging
import weakref

from celery_redlock._greenlets.unpatched import native_lock
from celery_redlock._log import event_logger
from celery_redlock.core import Client
from celery_redlock.core.failures import describe_problems
from celery_redlock.errors import LockNotAcquired
from celery_redlock.protocol.timing import quorum
from celery_redlock.tasks.border import TaskLike
from celery_redlock.tasks.config.client import (
    are_nodes_checked,
    record_nodes_checked,
    unusable_nodes_error,
)
from celery_redlock.tasks.config.settings import read_settings
from celery_redlock.tasks.events import Event, emit
from celery_redlock.tasks.node_watch import is_watched
from celery_redlock.transport.clock import now as clock

logger = event_logger(__name__)

#: Seconds between two warnings of one kind.
QUIET = 60.0


def check_nodes(task: TaskLike, client: Client) -> None:
    """
    Check that no node has turned out to be unusable for good, until this has succeeded once.

    Raises:
        ConfigurationError: a node refuses this process or can never serve, and
            `redlock_on_unusable_node` is `raise`.
    """
    if are_nodes_checked(task.app):
        return
    failures = client.transport.failures()
    lasting = {name: str(why) for name, why in failures.items() if why and why.lasting}
    if lasting and read_settings(task.app).on_unusable_node == "raise":
        raise unusable_nodes_error(lasting)
    if None not in failures.values():
        record_nodes_checked(task.app)


def report_failing_nodes(task: TaskLike, task_id: str, client: Client) -> None:
    """
    Count, and warn, that a minority of nodes failed while a message got its lock.

    In a worker nothing is reported: the worker watches the nodes for all its processes.
    """
    failures = client.transport.failures()
    if not failures or is_watched(task.app):
        return
    reasons = {name: str(why) for name, why in failures.items() if why is not None}
    if not reasons:
        return
    nodes = len(client.node_names)
    suppressed, more = _admitted(client, Event.NODE_FAILED)
    logger.log(
        logging.DEBUG if suppressed is None else logging.WARNING,
        "lock-nodes-fail",
        "Lock nodes fail: %(reason)s. Locks are acquired as long as %(needed)d of %(node_count)d "
        "nodes reply.%(more)s",
        reason=describe_problems(reasons),
        nodes=", ".join(reasons),
        needed=quorum(nodes),
        node_count=nodes,
        suppressed=suppressed,
        more=more,
    )
    emit(Event.NODE_FAILED, task, task_id, nodes=reasons)


def warn_without_lock(task: TaskLike, task_id: str, client: Client, error: LockNotAcquired) -> None:
    """Count, and warn, that a message is sent without its lock."""
    suppressed, more = _admitted(client, type(error).__name__)
    logger.log(
        logging.DEBUG if suppressed is None else logging.WARNING,
        "message-sent-without-lock",
        "Task %(task)s[%(task_id)s] is sent without its lock, so a duplicate may be sent, too; the "
        "worker acquires the lock. %(error)s%(more)s",
        task=task.name,
        task_id=task_id,
        error=error,
        suppressed=suppressed,
        more=more,
    )
    emit(Event.WITHOUT_LOCK, task, task_id, error=error)


class _Quiet:
    """Admits one warning of each kind in a minute, and counts those that it suppresses."""

    def __init__(self) -> None:
        self._lock = native_lock()
        self._last: dict[str, tuple[float, int]] = {}

    def admit(self, kind: str) -> int | None:
        """Return how many warnings were suppressed since the last one; None: suppress this one."""
        now = clock()
        with self._lock:
            logged_at, suppressed = self._last.get(kind, (now - QUIET, 0))
            is_due = now - logged_at >= QUIET
            self._last[kind] = (now, 0) if is_due else (logged_at, suppressed + 1)
        return suppressed if is_due else None


# By client: a forked child makes a new client, and has logged nothing yet.
_quiet: weakref.WeakKeyDictionary[Client, _Quiet] = weakref.WeakKeyDictionary()


def _admitted(client: Client, kind: str) -> tuple[int | None, str]:
    """Return the result of `_Quiet.admit`, and the end of the line about suppressed ones."""
    suppressed = _quiet.setdefault(client, _Quiet()).admit(kind)
    more = f" ({suppressed} more like this since the last line.)" if suppressed else ""
    return suppressed, more
