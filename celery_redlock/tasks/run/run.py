"""
One run of a task under its lock: acquire the lock, run the body, release the lock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from celery_redlock.core import Lease
from celery_redlock.core.lease import watch
from celery_redlock.errors import LockNotAcquired
from celery_redlock.tasks.border import (
    RequestLike,
    TaskLike,
    run_in_autoretry,
    set_run_in_autoretry,
)
from celery_redlock.tasks.config.option_values import skip_result
from celery_redlock.tasks.config.options import LockPlan
from celery_redlock.tasks.events import MonitorEvent, send_monitor_event
from celery_redlock.tasks.interrupt.interrupters import choose_interrupter
from celery_redlock.tasks.rules.ending import Move
from celery_redlock.tasks.run.arrival_facts import arrival_of
from celery_redlock.tasks.run.case import Case
from celery_redlock.tasks.run.contention import resolve
from celery_redlock.tasks.run.lease_lost import handle_loss
from celery_redlock.tasks.run.lock_request import lock_request_for
from celery_redlock.tasks.run.requeue import strip_header
from celery_redlock.tasks.run.running_lock import RunningLock, current_running_lock
from celery_redlock.tasks.run.stop_request import STOP_SEEN_WITHIN


def run_locked(
    task: TaskLike,
    request: RequestLike,
    plan: LockPlan,
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a task's body under its lock, or follow the task's policy if it gets none."""
    if plan.keys is None and request.is_eager:
        return call(*args, **kwargs)  # no lock to take, and no message that could come twice
    running_lock = RunningLock(lock_request_for(task, request, plan, args, kwargs))
    request.tick = running_lock.lock_request.tick
    running_lock.begin()
    # Exceptions from outside (soft time limit, SIGTERM) can strike anywhere. From here on they
    # release the lock; one that strikes between the nodes' answer and the assignment of the lease,
    # or inside the release itself, leaves the lock to the backstop in task_postrun or to its TTL.
    try:
        if not _acquire(running_lock):
            return skip_result(plan.options.skip_result, running_lock.skip_reason)
        lease = running_lock.hold()
        if lease is not None:
            _watch(running_lock, lease, plan)
            if running_lock.body_lease is not None:
                facts = {"key": lease.key, "fencing_token": lease.fencing_token}
                send_monitor_event(MonitorEvent.LOCKED, task, request, **facts)
        strip_header(request)
        running_lock.move(Move.BEGIN)
        return running_lock.body.run(call, args, kwargs, running_lock.cancel_interrupt)
    finally:
        running_lock.exit_body()


def _acquire(running_lock: RunningLock) -> bool:
    """Acquire what the message needs; return whether its body runs. Errors as `resolve`."""
    lock_request = running_lock.lock_request
    if lock_request.tick is not None or lock_request.envelope.duplicate_of is not None:
        known = arrival_of(lock_request, time.time())
        return resolve(Case(running_lock=running_lock, arrival=known))
    try:
        running_lock.acquire()
    except LockNotAcquired as error:
        return resolve(Case(running_lock=running_lock, error=error, is_refused=True))
    return True


def _watch(running_lock: RunningLock, lease: Lease, plan: LockPlan) -> None:
    """Have the lease extended; its loss matters only to a body that runs under it."""
    if running_lock.body_lease is not None and plan.options.on_lost != "flag":
        running_lock.interrupter = choose_interrupter(running_lock.body, plan.lost_signal)
    watch(
        lease,
        on_lost=partial(handle_loss, running_lock),
        max_hold=plan.options.max_hold,
        seen_within=math.inf if running_lock.stopping_lock is None else STOP_SEEN_WITHIN,
    )


def end_before_autoretry(task: TaskLike) -> None:
    """
    Have a task's body end where Celery's autoretry takes over what it raised. Idempotent.

    Celery wraps the task's `run`, so it sends the retry from inside the call of the body. A
    `LeaseLost` that was thrown at the application's code could land in the retry if that code ends
    meanwhile, so it is taken back.
    """
    application = run_in_autoretry(task)
    if application is None or getattr(application, "celery_redlock", False):
        return

    @wraps(application)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return application(*args, **kwargs)
        finally:
            running_lock = current_running_lock()
            if running_lock is not None:
                running_lock.defer_interrupt()

    run.celery_redlock = True  # type: ignore[attr-defined]  # marks it as wrapped
    set_run_in_autoretry(task, run)
