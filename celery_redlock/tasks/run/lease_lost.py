"""
The effect of a lost lease on its task (`lock_on_lost`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from celery_redlock._greenlets.threads import start_thread
from celery_redlock._log import event_logger
from celery_redlock.core import Lease
from celery_redlock.errors import LeaseLost, LossReason
from celery_redlock.protocol.texts import shortened
from celery_redlock.tasks.border import RequestLike, TaskLike
from celery_redlock.tasks.events import Event, emit
from celery_redlock.tasks.interrupt.body import Body, InjectedLeaseLost
from celery_redlock.tasks.interrupt.interrupters import Interrupter
from celery_redlock.tasks.message.in_words import lease_in_words
from celery_redlock.tasks.monitor_events import MonitorEvent, send_monitor_event
from celery_redlock.tasks.run.stop_request import StoppingLock

logger = event_logger(__name__)

#: Seconds between two tries: a body that mostly runs Celery's code is rarely met in its own.
INTERRUPT_PERIOD = 0.02


class LeaseLostHandler:
    """
    Notifies one body of the loss of its lease, in the way its task chose.

    The lease calls it once, mostly from the watchdog's thread. Everything that may take time
    happens in another thread, so that a loss never delays the extension of other leases. Under
    gevent and eventlet that is a greenlet, in which the application's function and the receivers of
    `lock_lost` may wait and lock. A body that does not let other greenlets run is notified only
    when it does; until then only `lease.check()` shows the loss.
    """

    __slots__ = ("_body", "_interrupter", "_on_lost", "_request", "_stopping_lock", "_task")

    def __init__(
        self,
        *,
        body: Body,
        interrupter: Interrupter | None,
        task: TaskLike,
        request: RequestLike,
        on_lost: str | Callable[[Any, Lease], str | None],
        stopping_lock: StoppingLock | None = None,
    ) -> None:
        self._body = body
        self._interrupter = interrupter
        self._task = task
        self._request = request
        self._on_lost = on_lost
        self._stopping_lock = stopping_lock

    def __call__(self, lease: Lease) -> None:
        start_thread(lambda: self._handle(lease))

    def _handle(self, lease: Lease) -> None:
        asked = False if self._stopping_lock is None else self._stopping_lock.retain()
        reason = LossReason.STOP_REQUESTED if asked else lease.lost
        if self._stopping_lock is not None and asked is not False:
            start_thread(self._stopping_lock.keep_trying)
        emit(Event.LOCK_LOST, self._task, self._request.id, key=lease.key, reason=reason)
        facts = {"key": lease.key, "fencing_token": lease.fencing_token, "reason": reason}
        send_monitor_event(MonitorEvent.LOST, self._task, self._request, **facts)
        if self._body.finished:
            return  # the release finds the loss, and logs it
        choice = self._choose(lease)
        interrupts = choice == "interrupt" and self._interrupter is not None and not self._body.over
        logger.log(
            logging.WARNING if asked else logging.ERROR,
            "task-lost-lease",
            "Task %(task)s[%(task_id)s] lost its %(lease)s (%(reason)s) while its body ran; "
            "fencing token %(token)s. %(consequence)s",
            task=self._task.name,
            task_id=self._request.id,
            lease=lease_in_words(lease),
            reason=reason,
            key=shortened(lease.key),
            token=lease.fencing_token,
            consequence="LeaseLost is raised in the body."
            if interrupts
            else "The body is not interrupted; lease.check() raises LeaseLost.",
        )
        if interrupts:
            self._interrupt(lease, reason)

    def _choose(self, lease: Lease) -> str | None:
        if not callable(self._on_lost):
            return self._on_lost
        try:
            return self._on_lost(self._task, lease)
        except Exception:
            logger.exception(
                "lock-on-lost-failed",
                "lock_on_lost of task %(task)s[%(task_id)s] raised; its body is interrupted.",
                task=self._task.name,
                task_id=self._request.id,
            )
            return "interrupt"

    def _interrupt(self, lease: Lease, reason: LossReason | None) -> None:
        body, interrupter = self._body, self._interrupter
        if interrupter is None:
            return
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
                    task=self._task.name,
                    task_id=self._request.id,
                )
                return
            time.sleep(INTERRUPT_PERIOD)
