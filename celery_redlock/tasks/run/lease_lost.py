"""
The effect of a lost lease on its task (`lock_on_lost`).
"""

from __future__ import annotations

import logging
import time
from functools import partial

from celery_redlock._greenlets.threads import start_thread
from celery_redlock._log import event_logger
from celery_redlock.core import Lease
from celery_redlock.errors import LeaseLost, LossReason
from celery_redlock.protocol.texts import shortened
from celery_redlock.tasks.events import Event, MonitorEvent, emit, send_monitor_event
from celery_redlock.tasks.interrupt.body import InjectedLeaseLost
from celery_redlock.tasks.interrupt.interrupters import Interrupter
from celery_redlock.tasks.message.in_words import lease_in_words
from celery_redlock.tasks.run.running_lock import RunningLock

logger = event_logger(__name__)

#: Seconds between two tries: a body that mostly runs Celery's code is rarely met in its own.
INTERRUPT_PERIOD = 0.02


def handle_loss(running_lock: RunningLock, lease: Lease) -> None:
    """
    Notify one body of the loss of its lease, in the way its task chose.

    The lease calls it once, mostly from the watchdog's thread. Everything that may take time
    happens in another thread, so that a loss never delays the extension of other leases. Under
    gevent and eventlet that is a greenlet, in which the application's function and the receivers of
    `lock_lost` may wait and lock. A body that does not let other greenlets run is notified only
    when it does; until then only `lease.check()` shows the loss.
    """
    start_thread(partial(_handle, running_lock, lease))


def _handle(running_lock: RunningLock, lease: Lease) -> None:
    task, request, body = running_lock.task, running_lock.request, running_lock.body
    stopping_lock = running_lock.stopping_lock
    asked = False if stopping_lock is None else stopping_lock.retain()
    reason = LossReason.STOP_REQUESTED if asked else lease.lost
    if stopping_lock is not None and asked is not False:
        start_thread(stopping_lock.keep_trying)
    emit(Event.LOCK_LOST, task, request.id, key=lease.key, reason=reason)
    facts = {"key": lease.key, "fencing_token": lease.fencing_token, "reason": reason}
    send_monitor_event(MonitorEvent.LOST, task, request, **facts)
    if body.finished:
        return  # the release finds the loss, and logs it
    interrupter = running_lock.interrupter if _choose(running_lock, lease) == "interrupt" else None
    interrupts = interrupter is not None and not body.over
    logger.log(
        logging.WARNING if asked else logging.ERROR,
        "task-lost-lease",
        "Task %(task)s[%(task_id)s] lost its %(lease)s (%(reason)s) while its body ran; "
        "fencing token %(token)s. %(consequence)s",
        task=task.name,
        task_id=request.id,
        lease=lease_in_words(lease),
        reason=reason,
        key=shortened(lease.key),
        token=lease.fencing_token,
        consequence="LeaseLost is raised in the body."
        if interrupts
        else "The body is not interrupted; lease.check() raises LeaseLost.",
    )
    if interrupter is not None and interrupts:
        _interrupt(running_lock, interrupter, lease, reason)


def _choose(running_lock: RunningLock, lease: Lease) -> str | None:
    on_lost = running_lock.lock_request.options.on_lost
    if running_lock.body_lease is None:
        return "flag"  # the loss matters only to a body that runs under the lease
    if not callable(on_lost):
        return on_lost
    try:
        choice: str | None = on_lost(running_lock.task, lease)
    except Exception:
        logger.exception(
            "lock-on-lost-failed",
            "lock_on_lost of task %(task)s[%(task_id)s] raised; its body is interrupted.",
            task=running_lock.task.name,
            task_id=running_lock.request.id,
        )
        return "interrupt"
    return choice


def _interrupt(
    running_lock: RunningLock, interrupter: Interrupter, lease: Lease, reason: LossReason | None
) -> None:
    body = running_lock.body
    advice = (
        "stop"
        if reason is LossReason.STOP_REQUESTED
        else "stop writing. Another process may hold the lock now"
    )
    loss = LeaseLost(
        f"The lease on {shortened(lease.key)!r} is lost: {reason}; {advice}.",
        lease.key,
        reason,
    )
    body.due = InjectedLeaseLost.into(body, loss)
    while not (body.finished or body.over):
        try:
            interrupter.interrupt(body)
        except Exception:
            logger.exception(
                "lease-lost-not-raised",
                "LeaseLost could not be raised in task %(task)s[%(task_id)s]; its body "
                "continues, and only lease.check() and fencing tokens protect what it writes.",
                task=running_lock.task.name,
                task_id=running_lock.request.id,
            )
            return
        time.sleep(INTERRUPT_PERIOD)
