"""
Celery's signals that a request begins and that it has ended.
"""

from __future__ import annotations

import sys
from typing import Any

from celery import Task, signals

from celery_redlock.tasks.border import RequestLike, TaskLike, state_of
from celery_redlock.tasks.config.client import client_for
from celery_redlock.tasks.config.plan import LockPlan
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.rules.ending import CeleryState, State, Unused, keeps_reservation
from celery_redlock.tasks.rules.facts import Raised
from celery_redlock.tasks.run.arrival_facts import raised_by
from celery_redlock.tasks.run.ended_tasks import connect_ended_tasks
from celery_redlock.tasks.run.handover import cancel_kept
from celery_redlock.tasks.run.running_lock import running_lock_of
from celery_redlock.tasks.run.shown_end import connect_log


def connect_postrun(plan: LockPlan) -> None:
    """
    Receive Celery's signals of the begin and end of requests. Idempotent.

    They are connected only once a task needs them: a receiver costs every task a little.
    """
    if plan.options.mode_spec.at_publish:
        connect_ended_tasks()
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
