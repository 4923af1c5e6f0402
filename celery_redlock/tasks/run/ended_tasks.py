"""
The end of a task: Celery's signals of it, and what the sender of a message can know of it.

A task's lock outlives its body, because Celery first sends the task's successors and stores the
result. Any code that runs because a task has ended sends new calls, not duplicates of that task.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from celery import Task, signals
from celery._state import get_current_worker_task

from celery_redlock.tasks.border import RequestLike, TaskLike, state_of
from celery_redlock.tasks.config.client import client_for
from celery_redlock.tasks.config.options import LockPlan
from celery_redlock.tasks.message.envelope import HEADER, Envelope, fresh_nonce
from celery_redlock.tasks.message.owner_label import label_id
from celery_redlock.tasks.rules.ending import CeleryState, State, Unused, keeps_reservation
from celery_redlock.tasks.rules.facts import Raised
from celery_redlock.tasks.run.arrival_facts import raised_by
from celery_redlock.tasks.run.handover import cancel_kept
from celery_redlock.tasks.run.running_lock import running_lock_of
from celery_redlock.tasks.run.shown_end import connect_log


def connect_ends(plan: LockPlan) -> None:
    """
    Receive Celery's signals of the begin and end of a task's requests. Idempotent.

    They are connected only once a task needs them: a receiver costs every task a little.
    """
    if plan.options.mode_spec.at_publish:
        # Messages name the task whose end sends them.
        signals.before_task_publish.connect(
            _name_ended, weak=False, dispatch_uid="celery_redlock.ended_tasks.before_task_publish"
        )
    connect_log()
    signals.task_postrun.connect(_ended, weak=False, dispatch_uid="celery_redlock.task_postrun")
    if plan.marks_messages:
        signals.task_prerun.connect(_begins, weak=False, dispatch_uid="celery_redlock.task_prerun")


def _begins(task: Any = None, **_: Any) -> None:
    """Note that Celery will signal the end of this request."""
    # Other packages send these signals too, for objects that are no tasks.
    if isinstance(task, Task):
        state_of(task.request).traced = True


def _ended(task: Any = None, state: str | None = None, retval: Any = None, **_: Any) -> None:
    """Release the keys that waited for the result, or that an exception in the release has left."""
    request = task.request if isinstance(task, Task) else None
    running_lock = running_lock_of(request)
    if running_lock is not None:
        running_lock.end(state, retval)
    elif request is not None and not state_of(request).ended:
        _cancel_unused(task, request, _raised(state, retval))
    if request is not None:
        cancel_kept(task, request, _raised(state, retval))
        if (log := state_of(request).last_words) is not None:
            log()


def _raised(state: str | None, result: Any) -> Raised:
    """Return what ended a request: its result, or an exception that passes through Celery."""
    if state == CeleryState.SUCCESS:
        return Raised.NOTHING
    return raised_by(result if isinstance(result, BaseException) else sys.exc_info()[1])


def _cancel_unused(task: TaskLike, request: RequestLike, raised: Raised) -> None:
    """Free the lock of a message whose task ended on its way to the body (`before_start`)."""
    plan = getattr(task, "redlock_plan", None)
    if plan is None or not plan.options.mode_spec.at_publish:
        return
    reservation = Envelope.read(request.headers).reservation
    unused = Unused(state=State.UNRUN, raised=raised, acks_late=bool(task.acks_late))
    if reservation is not None and not keeps_reservation(unused):
        client_for(task.app).cancel(reservation)


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
