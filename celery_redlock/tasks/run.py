"""
One run of a task under its lock: take it, run the body, release it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from celery import signals
from celery.utils.log import get_logger

from celery_redlock.core import Lease, enter_lease
from celery_redlock.errors import LockNotAcquired
from celery_redlock.tasks.body import Body
from celery_redlock.tasks.client import redlock_for
from celery_redlock.tasks.conflict import Verdict, settle
from celery_redlock.tasks.keys import KeyMaker
from celery_redlock.tasks.loss import LossReport
from celery_redlock.tasks.options import LockOptions
from celery_redlock.tasks.reach import Reach, reach_here
from celery_redlock.tasks.requeue import end_episode

__all__ = ["LockPlan", "bodies_run", "connect_backstop", "lease_of", "run_locked"]

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockPlan:
    """
    What a task class was found to want when it was bound to its app.

    Attributes:
        options: its checked lock options.
        keys: makes the lock keys of a call.
        lost_signal: the signal that interrupts a body in the main thread.
    """

    options: LockOptions
    keys: KeyMaker
    lost_signal: int


class Hold:
    """A request's lock, from before it is taken until the body has unwound."""

    __slots__ = ("_reach", "body", "enclosing", "lease", "request", "task")

    def __init__(self, task: Any, request: Any, enclosing: Hold | None) -> None:
        self.task = task
        self._reach: Reach | None = None
        self.request = request
        self.enclosing = enclosing
        self.body: Body = Body(enclosing.body if enclosing else None)
        self.lease: Lease | None = None

    def reach(self, lost_signal: int) -> Reach:
        """Prepare the way for a `LeaseLost` into the body that is about to run here."""
        self._reach = reach_here(self.body, lost_signal)
        return self._reach

    def forget_thrown(self) -> None:
        if self._reach is not None:
            self._reach.forget()

    def end(self) -> None:
        """Release what is held; a forked child leaves its parent's lock alone."""
        if os.getpid() == self.body.pid:
            self.body.leave(self.forget_thrown)
            if self.lease is not None:
                lost = self.lease.lost
                still_held = self.lease.release()
                if not still_held and not self.body.landed:
                    self._warn(self.lease, lost)
        _holds.discard(self)
        # Last: until it is done, the backstop finds the hold here.
        _current.set(self.enclosing)
        enter_lease(self.enclosing.lease if self.enclosing else None)

    def _warn(self, lease: Lease, lost: str | None) -> None:
        logger.warning(
            "Task %s[%s] ended without its lock %s: %s. Another body may have run beside its last "
            "part; a resource that checks fencing tokens has refused what came too late.",
            self.task.name,
            self.request.id,
            lease.key,
            lost or "a quorum of nodes did not confirm it at release",
        )


_current: ContextVar[Hold | None] = ContextVar("celery_redlock_hold", default=None)
_holds: set[Hold] = set()


def bodies_run() -> bool:
    """Tell whether a locking task is under way in this process."""
    return any(hold.body.pid == os.getpid() for hold in tuple(_holds))


def run_locked(
    task: Any,
    request: Any,
    plan: LockPlan,
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a task's body under its lock, or follow its policy where there is none."""
    options = plan.options
    keys = plan.keys.keys_for(args, kwargs)
    redlock = redlock_for(task.app)
    label = f"{request.id} {request.hostname} {os.getpid()}"
    started = time.time()

    def acquire() -> Lease:
        return redlock.acquire(
            keys,
            ttl=options.ttl,
            wait=options.wait,
            retry=options.retry,
            label=label,
            at_least_for=options.at_least_for,
        )

    hold = Hold(task, request, _current.get())
    _current.set(hold)
    enter_lease(None)
    _holds.add(hold)
    # Exceptions from outside (soft time limit, SIGTERM) can strike anywhere. From here on they
    # release the lock; one that strikes between the nodes' answer and the assignment of the lease,
    # or inside the release itself, leaves it to the backstop in task_postrun or to its TTL.
    try:
        try:
            hold.lease = acquire()
        except LockNotAcquired as error:
            settled = settle(task, request, options, error, acquire, started)
            if settled is Verdict.SKIP:
                return options.skip_result
            if isinstance(settled, Lease):
                hold.lease = settled
        end_episode(request)
        if hold.lease is not None:
            request.fencing_token = hold.lease.fencing_token
            enter_lease(hold.lease)
            reach = None if options.on_lost == "flag" else hold.reach(plan.lost_signal)
            redlock.watch(
                hold.lease,
                on_lost=LossReport(
                    body=hold.body,
                    reach=reach,
                    task=task,
                    task_id=request.id,
                    on_lost=options.on_lost,
                ),
                max_hold=options.max_hold,
            )
        return hold.body.run(call, args, kwargs, hold.forget_thrown)
    finally:
        hold.end()


def lease_of(task: Any) -> Lease | None:
    """Return the lease under which a task's body runs here, or None."""
    hold = _current.get()
    return hold.lease if hold is not None and hold.task is task else None


def connect_backstop() -> None:
    """
    Have Celery tell when a request has ended. Idempotent.

    Connected once a task locks and not before: a receiver costs every task a little.
    """
    signals.task_postrun.connect(
        _release_left_behind, weak=False, dispatch_uid="celery_redlock.task_postrun"
    )


def _release_left_behind(task: Any = None, **_: Any) -> None:
    """Release what an exception inside the release itself has left."""
    hold = _current.get()
    if hold is not None and hold.request is task.request:
        hold.end()
