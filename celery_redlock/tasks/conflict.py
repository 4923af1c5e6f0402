"""
What a task does whose lock was not taken (`lock_on_conflict`, `lock_on_unavailable`).
"""

from __future__ import annotations

import enum
import random
import time
from collections.abc import Callable
from typing import Any

from celery.exceptions import Reject
from celery.utils.log import get_logger

from celery_redlock.core import Lease
from celery_redlock.errors import ConfigurationError, LockContended, LockNotAcquired
from celery_redlock.tasks.options import LockOptions
from celery_redlock.tasks.requeue import give_up, requeue

__all__ = ["SKIPPED_EVENT", "Verdict", "settle"]

logger = get_logger(__name__)

SKIPPED_EVENT = "task-lock-skipped"
POLICIES = ("requeue", "skip", "reject", "raise")
LONGEST_PAUSE_IN_PLACE = 1.0


class Verdict(enum.Enum):
    """How a task goes on that has no lock, where it does not end with an exception."""

    SKIP = "skip"
    RUN_UNLOCKED = "run_unlocked"


def settle(
    task: Any,
    request: Any,
    options: LockOptions,
    error: LockNotAcquired,
    acquire: Callable[[], Lease],
    started: float,
) -> Lease | Verdict:
    """
    Follow the task's policy after a failed attempt.

    Args:
        task: the task that is to run.
        request: its request.
        options: its lock options.
        error: why it has no lock.
        acquire: makes another attempt.
        started: when the first attempt began, in seconds since the epoch.

    Returns:
        How to go on; a lease if waiting in place was the policy and paid off.

    Raises:
        Retry: the task was put back into its queue.
        Reject: its message goes back to the broker or to the dead letters.
        LockNotAcquired: the task fails.
    """
    policy = _policy(task, options, error)
    if policy == "skip":
        _skipped(task, request, options, error)
        return Verdict.SKIP
    if policy == "run_unlocked":
        logger.error(
            "Task %s[%s] runs WITHOUT its lock, as lock_on_unavailable says; another may run "
            "beside it, and it has no fencing token. %s",
            task.name,
            request.id,
            error,
        )
        return Verdict.RUN_UNLOCKED
    if policy == "reject":
        _reject(task, request, error)
    if policy == "requeue":
        if not request.is_eager:
            requeue(task, request, options, error, started)
        return _wait_in_place(task, request, options, error, acquire, started)
    logger.warning("Task %s[%s] fails without its lock: %s", task.name, request.id, error)
    raise error


def _policy(task: Any, options: LockOptions, error: LockNotAcquired) -> str:
    if not isinstance(error, LockContended):
        return options.on_unavailable
    policy = options.run_policy
    if callable(policy):
        policy = policy(task, error)
        if policy not in POLICIES:
            raise ConfigurationError(
                f"lock_on_conflict of task {task.name} returned {policy!r}. It returns one of "
                f"{', '.join(map(repr, POLICIES))}, or raises."
            )
    if error.split and policy in ("skip", "reject"):
        # Several contenders share the nodes and nobody holds the lock: were each of them to give
        # way to the others, the work would be done by none.
        return "requeue"
    return str(policy)


def _skipped(task: Any, request: Any, options: LockOptions, error: LockNotAcquired) -> None:
    logger.info(
        "Task %s[%s] is skipped and ends with lock_skip_result %r: %s",
        task.name,
        request.id,
        options.skip_result,
        error,
    )
    if request.is_eager or not task.send_events:
        return
    try:
        task.send_event(
            SKIPPED_EVENT,
            retry=False,
            name=task.name,
            key=getattr(error, "key", None),
            holder=getattr(error, "holder", None),
        )
    except Exception as exc:
        # An event is news, not work: a broker that cannot take it does not change the outcome.
        logger.warning("The event %s could not be sent: %r", SKIPPED_EVENT, exc)


def _reject(task: Any, request: Any, error: LockNotAcquired) -> None:
    """Reject the message where that is safe; otherwise say why not, and let the task fail."""
    if request.is_eager or not task.acks_late:
        why = "its message is already acknowledged (acks_late is off)"
    elif _in_chord(request):
        why = "a rejected member would keep its chord waiting for ever"
    else:
        logger.warning("Task %s[%s] is rejected: %s", task.name, request.id, error)
        raise Reject(error, requeue=False)
    logger.warning("Task %s[%s] fails instead of being rejected: %s.", task.name, request.id, why)


def _in_chord(request: Any) -> bool:
    if request.chord:
        return True
    steps = request.chain or ()
    return any((step.get("options") or {}).get("chord") for step in steps)


def _wait_in_place(
    task: Any,
    request: Any,
    options: LockOptions,
    error: LockNotAcquired,
    acquire: Callable[[], Lease],
    started: float,
) -> Lease:
    """Under `apply()` there is no queue to go back to."""
    pause = 0.01
    attempts = 0
    while True:
        waited = max(0.0, time.time() - started)
        left = options.give_up_after - waited
        if left <= 0:
            give_up(task, request, options, error, waited, attempts)
        time.sleep(min(left, random.uniform(0.0, pause)))  # noqa: S311  # spreads load only
        pause = min(LONGEST_PAUSE_IN_PLACE, pause * 2)
        attempts += 1
        try:
            return acquire()
        except LockNotAcquired as exc:
            error = exc
