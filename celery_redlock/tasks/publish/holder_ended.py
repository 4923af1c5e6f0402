"""
Whether a publisher can know that the task that holds a lock has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any

from celery import states
from celery.backends.base import DisabledBackend
from celery.backends.rpc import RPCBackend

from celery_redlock._log import event_logger
from celery_redlock.tasks.border import TaskLike
from celery_redlock.tasks.message.owner_label import TaskOwner
from celery_redlock.tasks.rules.facts import Role
from celery_redlock.tasks.run.ended_tasks import known_ended_tasks

logger = event_logger(__name__)


def has_ended(task: TaskLike, holder: TaskOwner) -> bool:
    """
    Return whether the publisher can know that the holder's task has ended, before the release.

    It can if the result is readable, or if this process runs a successor of that task. Limit: the
    backend `rpc://` stores no results, so only the successor counts there.
    """
    if holder.role is not Role.RUNNING:
        return False
    return holder.task_id in known_ended_tasks() or (
        not task.ignore_result and _is_stored(task, holder)
    )


def _is_stored(task: TaskLike, holder: TaskOwner) -> bool:
    backend = task.backend
    if isinstance(backend, DisabledBackend | RPCBackend):
        return False
    try:
        meta = backend.get_task_meta(holder.task_id, cache=False)
    except Exception as exc:
        # The caller cannot read the result either.
        logger.warning(
            "holder-result-unreadable",
            "The result of task %(task_id)s cannot be read: %(error)r",
            task_id=holder.task_id,
            error=exc,
        )
        return False
    if meta.get("status") not in states.READY_STATES:
        return False
    return not _is_of_an_earlier_run(meta, holder, task.app.timezone)


def _is_of_an_earlier_run(meta: Mapping[str, Any], holder: TaskOwner, zone: tzinfo) -> bool:
    """Return whether a result was stored before the holder took its lock: an id may be reused."""
    stored = meta.get("date_done")
    try:
        done = datetime.fromisoformat(stored) if isinstance(stored, str) else stored
    except ValueError:
        return False
    if not isinstance(done, datetime):
        return False  # a backend that keeps no time
    since = datetime.fromtimestamp(holder.since / 1_000_000, UTC)
    # A database keeps the local time of the app and no zone.
    return (done if done.tzinfo is not None else done.replace(tzinfo=zone)) < since
