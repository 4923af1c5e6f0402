"""
One run of a task under its lock: take it, run the body, let it go.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from celery_redlock.core import Lease
from celery_redlock.errors import LockNotAcquired
from celery_redlock.tasks.config.plan import LockPlan
from celery_redlock.tasks.holding.arrival import claim_for
from celery_redlock.tasks.holding.hold import Hold, current_hold
from celery_redlock.tasks.holding.loss import LossReport
from celery_redlock.tasks.running.choosing import ends_here
from celery_redlock.tasks.running.conflict import Verdict, settle
from celery_redlock.tasks.running.punctuality import drop_late, is_missed
from celery_redlock.tasks.running.repeats import is_repeated
from celery_redlock.tasks.running.requeue import strip_header

__all__ = ["lease_of", "run_locked"]


def run_locked(
    task: Any,
    request: Any,
    plan: LockPlan,
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a task's body under its lock, or follow its policy where there is none."""
    if plan.keys is None and request.is_eager:
        return call(*args, **kwargs)  # no lock to take, and no message that could come twice
    hold = Hold(claim_for(task, request, plan, args, kwargs))
    request.tick = hold.claim.tick
    hold.begin()
    # Exceptions from outside (soft time limit, SIGTERM) can strike anywhere. From here on they
    # release the lock; one that strikes between the nodes' answer and the assignment of the lease,
    # or inside the release itself, leaves it to the backstop in task_postrun or to its TTL.
    try:
        try:
            if is_missed(hold) or is_repeated(hold):
                return plan.options.skip_result
            drop_late(hold.claim)
            if not hold.claim.is_empty:
                hold.lease = hold.claim.take(final=partial(ends_here, hold.claim))
        except LockNotAcquired as error:
            settled = settle(hold, error)
            if settled is Verdict.SKIP:
                return plan.options.skip_result
            if isinstance(settled, Lease):
                hold.lease = settled
        if hold.lease is not None:
            hold.take_over(hold.lease)
        if hold.lease is not None:
            _watch(hold, hold.lease)
        strip_header(request)
        hold.ran = True
        return hold.body.run(call, args, kwargs, hold.forget_thrown)
    finally:
        hold.leave()


def _watch(hold: Hold, lease: Lease) -> None:
    """Have the lease renewed; its loss matters to a body only that is under it."""
    options = hold.claim.options
    on_lost = options.on_lost if hold.shown is not None else "flag"
    reach = None if on_lost == "flag" else hold.reach(hold.claim.plan.lost_signal)
    hold.claim.redlock.watch(
        lease,
        on_lost=LossReport(
            body=hold.body,
            reach=reach,
            task=hold.task,
            task_id=hold.request.id,
            on_lost=on_lost,
            keeper=hold.keeper,
        ),
        max_hold=options.max_hold,
    )


def lease_of(task: Any) -> Lease | None:
    """Return the lease under which a task's body runs here, or None."""
    hold = current_hold()
    return hold.shown if hold is not None and hold.task is task else None
