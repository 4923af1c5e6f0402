"""
The ended tasks that the sender of a message can know of.

A task's lock outlives its body, because Celery first sends the task's successors and stores the
result. Any code that runs because a task has ended sends new calls, not duplicates of that task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import signals
from celery._state import get_current_worker_task

from celery_redlock.tasks.message.envelope import HEADER, Envelope, fresh_nonce
from celery_redlock.tasks.message.owner_label import label_id
from celery_redlock.tasks.run.running_lock import running_lock_of


def sending_task() -> str | None:
    """Return the id of the task that a worker, or `apply()`, is running here; None outside."""
    task = get_current_worker_task()
    return None if task is None else task.request.id


def may_replace(task_id: str) -> bool:
    """
    Return whether a message with this id may replace a task, or be the last step that does.

    Celery counts the steps after a replaced one as its replacement, too, but they have other ids.
    Limit: the last of several steps counts as such a step if the replaced task neither began the
    chain nor sent the step before.
    """
    task = get_current_worker_task()
    if task is None:
        return True
    request = task.request
    return task_id in (request.id, request.parent_id, request.root_id)


def known_ended_tasks() -> frozenset[str]:
    """
    Return the ids, as in owner values, of the tasks that are known here to have ended.

    These are the task that runs here, once its body has ended, and the task whose end has sent it:
    as its link, as the next step of its chain, or as the body of its chord.
    """
    task = get_current_worker_task()
    if task is None:
        return frozenset()
    request = task.request
    running_lock = running_lock_of(request)
    # The header of a body that locks is taken away, so that messages of the body do not carry it.
    envelope = (
        Envelope.read(request.headers)
        if running_lock is None
        else running_lock.lock_request.envelope
    )
    ends = (envelope.after, _ended_here())
    return frozenset(end for end in ends if end is not None)


def connect_ended_tasks() -> None:
    """Have messages name the task whose end sends them. Idempotent."""
    signals.before_task_publish.connect(
        _name_ended, weak=False, dispatch_uid="celery_redlock.ended_tasks.before_task_publish"
    )


def _ended_here() -> str | None:
    """Return the task that runs here, if its work has ended and its lock is still held."""
    task = get_current_worker_task()
    running_lock = None if task is None else running_lock_of(task.request)
    if running_lock is None or not running_lock.body.finished or running_lock.state.is_continued:
        return None
    return label_id(running_lock.request.id)


def _name_ended(headers: Any = None, **_: Any) -> None:
    ended = _ended_here()
    if ended is None or not isinstance(headers, dict):
        return
    # The header may be a signature's own object, which must not change.
    there = headers.get(HEADER)
    ours = dict(there) if isinstance(there, Mapping) else {"nonce": fresh_nonce()}
    headers[HEADER] = {**ours, "after": ended}
