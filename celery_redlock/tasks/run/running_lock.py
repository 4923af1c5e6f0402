"""
The lock of one request, from before it is acquired until it is released.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any

from celery.exceptions import Reject

from celery_redlock._log import event_logger
from celery_redlock.core import (
    Lease,
    ReleaseAction,
    Reservation,
    current_leases,
    set_current_lease,
    set_current_leases,
)
from celery_redlock.core.failures import Refusal
from celery_redlock.core.lease import holding_of, release_keys, release_with
from celery_redlock.core.waiting import After
from celery_redlock.errors import LossReason, QuorumUnavailable
from celery_redlock.protocol.commands import Waiter
from celery_redlock.protocol.keys import Key
from celery_redlock.protocol.timing import milliseconds
from celery_redlock.tasks.border import RequestLike, TaskLike, state_of
from celery_redlock.tasks.interrupt.body import Body
from celery_redlock.tasks.interrupt.interrupters import Interrupter
from celery_redlock.tasks.message import expiry
from celery_redlock.tasks.message.in_words import lease_in_words
from celery_redlock.tasks.message.node_keys import dedupe_key_of
from celery_redlock.tasks.message.owner_label import parse_owner
from celery_redlock.tasks.rules.arrival import Action, how_to_wait, waits_in_place
from celery_redlock.tasks.rules.ending import (
    CeleryState,
    Ended,
    Ending,
    Keys,
    Leaving,
    Moment,
    Move,
    Remains,
    State,
    Unused,
    ending_of,
    keeps_reservation,
    keys_after,
    marker_after,
    moment_of,
    moved,
)
from celery_redlock.tasks.rules.facts import Raised, Role
from celery_redlock.tasks.run.arrival_facts import (
    contention_of,
    in_place_of,
    raised_by,
    waiting_of,
)
from celery_redlock.tasks.run.lock_request import LockRequest
from celery_redlock.tasks.run.stop_request import StoppingLock

logger = event_logger(__name__)


class RunningLock:
    """
    The lock and the dedupe marker of a request.

    Attributes:
        task: the task that runs.
        request: its request.
        lock_request: what it takes.
        enclosing: the running lock of the body that runs this task eagerly, if any.
        body: the running body; it decides when `LeaseLost` may be raised in it.
        lease: what was taken.
        stopping_lock: keeps the lock when a newer call asks this one to stop; None if none can ask.
        interrupter: raises `LeaseLost` in the body; None if its loss does not interrupt it.
        body_lease: the lease under which the body runs; None if it holds no lock key.
        handover_reservation: the lock of the message that continues this one: a retry, or a
            replacement.
        state: how far the request has come.
        unrun_as: its marker, where it ends without its body.
        skip_reason: why its body is skipped.
        is_registered: whether it has asked the nodes that refuse it to remember it.
    """

    __slots__ = (
        "_leases_around",
        "_surrounding",
        "_taken_at",
        "body",
        "body_lease",
        "enclosing",
        "handover_reservation",
        "interrupter",
        "is_registered",
        "lease",
        "lock_request",
        "request",
        "skip_reason",
        "state",
        "stopping_lock",
        "task",
        "unrun_as",
    )

    def __init__(self, lock_request: LockRequest) -> None:
        self.lock_request = lock_request
        self.task = lock_request.task
        self.request = lock_request.request
        self.enclosing: RunningLock | None = _current.get()
        self.body: Body = Body()
        self.lease: Lease | None = None
        self.stopping_lock: StoppingLock | None = None
        self.body_lease: Lease | None = None
        self.handover_reservation: Reservation | None = None
        self.state = State.WAITING
        self.unrun_as: Role | None = None
        self.skip_reason = ""
        self.is_registered = False
        self.interrupter: Interrupter | None = None
        self._leases_around: Any = ()
        self._taken_at = 0.0
        # A task may be called where an exception is being handled, which is not the task's own.
        self._surrounding = sys.exc_info()[1]

    @property
    def age(self) -> float:
        """Seconds since the lock was taken."""
        return time.monotonic() - self._taken_at

    def begin(self) -> None:
        """Register as the current running lock of this thread or greenlet."""
        if self.lock_request.holds_until_postrun:
            _sweep_orphans()
        state_of(self.request).running_lock = self
        _current.set(self)
        self._leases_around = current_leases()
        set_current_lease(None)
        _active.add(self)

    def move(self, move: Move) -> None:
        """
        Note what happened to the request.

        Raises:
            IllegalMoveError: that cannot happen in its state; nothing was changed.
        """
        self.state = moved(self.state, move)

    def hand_over(self, reservation: Reservation | None) -> None:
        """
        Note that the message that continues it is out: it gets the lock once the result is stored.

        If it arrives before that, it finds the lock held by its own task, and waits. If the key has
        a limit, it may find another slot free and begin there.
        """
        self.handover_reservation = reservation
        self.move(Move.HAND_OVER)

    def end_without_body(self, role: Role) -> None:
        """Note that the marker alone was acquired, and its role when the request ends."""
        self.move(Move.MARK)
        self.unrun_as = role

    def is_held_around(self, owner: str | None) -> bool:
        """Return whether a body or block that runs this task eagerly holds the lock to its end."""
        if any(lease.owner == owner for lease, _ in self._leases_around):
            return True
        around = self.enclosing
        while around is not None:
            if around.lease is not None and around.lease.owner == owner:
                return True
            around = around.enclosing
        return False

    def acquire(self, *, by_name: bool = False) -> None:
        """Acquire what the request takes, if anything; arguments and errors as `LockRequest`."""
        if self.lock_request.keys or self.lock_request.dedupe_key:
            self.is_registered = self.is_registered or by_name
            self.lease = self.lock_request.acquire(
                self._decide, self._registers_as, by_name=by_name
            )

    def _decide(self, refusal: Refusal) -> After:
        """Return what follows an attempt that others refused."""
        contention = contention_of(self.lock_request, refusal)
        in_place = in_place_of(self.lock_request, refusal, contention)
        after = After.WAIT if waits_in_place(in_place) else After.END
        is_requeued = in_place.is_requeued and not refusal.split
        return after | After.REGISTER if is_requeued else after

    def _registers_as(self) -> Waiter | None:
        waiting = waiting_of(self.lock_request, is_refused=True, is_registered=self.is_registered)
        if how_to_wait(waiting) is not Action.TRY_BY_NAME:
            return None
        self.is_registered = True
        return self.lock_request.waiter(is_registered=True)

    def hold(self) -> Lease | None:
        """Release the keys that the body does not hold; return the lease of the rest."""
        lease = self.lease
        if lease is None:
            return None
        self._taken_at = time.monotonic()
        in_body = self.lock_request.options.mode_spec.in_body
        if not in_body and not self.lock_request.dedupe_key:
            lease.release()
            self.lease = None
            return None
        if self.lock_request.released_before_body:
            release_keys(lease, self.lock_request.released_before_body)
        if self.lock_request.stop_request_keys:
            self.stopping_lock = StoppingLock(self.lock_request, lease)
        if self.lock_request.keys and in_body:
            self.body_lease = lease
            self.request.fencing_token = lease.fencing_token
            set_current_lease(lease)
        return lease

    def cancel_interrupt(self) -> None:
        """Throw nothing at this thread any more, and take back what has not landed."""
        if self.interrupter is not None:
            self.interrupter.cancel()

    def defer_interrupt(self) -> None:
        """Defer an interrupt that has not landed: the application's part ends."""
        if self.interrupter is not None:
            self.body.defer(self.interrupter.recall)

    def exit_body(self) -> None:
        """
        Release the keys of a body that has unwound, or will not begin.

        If the message has a marker, they are released only when Celery has stored the result and
        sent the task's successors (`task_postrun`), unless that signal will not come.
        """
        error = self._unwinding()
        self._finish_body()
        if self.lease is None or self.state is State.UNRUN:
            self._clear_unrun(error)
        if self.stopping_lock is not None and os.getpid() == self.body.pid:
            self.stopping_lock.close()
        leaving = Leaving(
            holds_until_result=self.lease is not None and self.lock_request.holds_until_postrun,
            process_ends=raised_by(error) is Raised.PROCESS_END,
            # The message of a tick comes through Celery's tracer: nothing else reads our header.
            is_traced=state_of(self.request).traced or self.lock_request.tick is not None,
        )
        if moment_of(leaving) is Moment.NOW:
            self.end(celery_state(error), error)

    def end(self, state: str | None = None, result: Any = None) -> None:
        """Release or hand over the keys; a forked child leaves its parent's lock alone."""
        self._finish_body()
        if self.lease is not None and os.getpid() == self.body.pid:
            # No error reports the loss if the body catches `LeaseLost` and succeeds.
            lease, excused = self.lease, self.body.landed and state != CeleryState.SUCCESS
            if self.stopping_lock is not None:
                lease, asked = self.stopping_lock.end()
                excused = excused or asked
            lost = lease.lost
            # A body may release its own lease early, and nothing was lost then.
            excused = excused or holding_of(lease).released_in_time
            log_end = partial(
                _log_end,
                self.task.name,
                self.request.id,
                lease,
                lost,
                under_lease=self.body_lease is not None,
                excused=excused,
            )
            self._release(lease, state, result, log_end)
        self.move(Move.END)
        _active.discard(self)
        # Last: until the keys are released, `task_postrun` finds the lock here.
        request_state = state_of(self.request)
        request_state.running_lock, request_state.ended = None, True

    def _finish_body(self) -> None:
        if os.getpid() == self.body.pid:
            self.body.finish(self.cancel_interrupt)
        if _current.get() is self:
            _current.set(self.enclosing)
            set_current_leases(self._leases_around)

    def _release(
        self, lease: Lease, state: str | None, result: Any, on_settled: Callable[..., object]
    ) -> None:
        if not self.lock_request.holds_until_postrun:
            release_with(lease, {}, wait=False, on_settled=on_settled)
            return
        ended = ended_of(self.lock_request, self.state, state, result, self._unwinding())
        actions, successor = release_plan(
            self.lock_request,
            ending_of(ended),
            state=self.state,
            unrun_as=self.unrun_as,
            handover=self.handover_reservation,
            age=self.age,
        )
        release_with(
            lease,
            actions,
            successor,
            grace=expiry.PUBLISH_GRACE,
            wait=False,
            on_settled=partial(on_settled, kept_for=_longest(actions, self.lock_request.keys)),
        )
        if successor is not None and successor is self.handover_reservation:
            self._cancel_if_unused(successor)

    def _cancel_if_unused(self, successor: Reservation) -> None:
        """
        Free the lock that was handed over, if its message will not take it over any more.

        The message may have been dropped, or have begun in another slot of a limit. A worker that
        drops it sets its marker and then frees the lock; a worker that begins it acquires its
        marker and a slot in one step. So the worker found the lock or this process sees the marker.
        """
        client, owner = self.lock_request.client, parse_owner(successor.owner)
        if owner is None or owner.marker is None:
            return
        try:
            (found,) = client.inspect([dedupe_key_of(owner.marker)])
        except QuorumUnavailable:
            return
        marked = None if found is None else parse_owner(found.owner)
        if marked is not None and marked.role is not Role.QUEUED:
            client.cancel(successor)

    def _clear_unrun(self, error: BaseException | None) -> None:
        """
        Clear what nodes have of a message that took no lock, unless it comes again.

        That is the lock that it brought, and its places in wait queues.
        """
        unused = Unused(
            state=self.state, raised=raised_by(error), acks_late=bool(self.task.acks_late)
        )
        if os.getpid() != self.body.pid or keeps_reservation(unused):
            return
        lock_request, envelope = self.lock_request, self.lock_request.envelope
        if envelope.reservation is not None:
            lock_request.client.cancel(envelope.reservation)
        if self.is_registered or lock_request.is_registered or envelope.wait_history is not None:
            keys = (*lock_request.keys, *lock_request.records)
            lock_request.client.forget_waiter(keys, lock_request.waiter(is_registered=False))

    def _unwinding(self) -> BaseException | None:
        """Return the exception that passes through here, if any."""
        error = sys.exc_info()[1]
        return None if error is self._surrounding else error


def _longest(actions: Mapping[Key, ReleaseAction], keys: Iterable[Key]) -> float:
    return max((actions[key].keep_ms / 1000 for key in keys if key in actions), default=0.0)


def _log_end(
    task: str,
    task_id: str | None,
    lease: Lease,
    lost: str | None,
    held: bool,
    *,
    under_lease: bool,
    excused: bool,
    kept_for: float = 0.0,
) -> None:
    """Warn of a body that did not hold its lock to the end, or of nodes that may still keep it."""
    if held or excused:
        return
    holding = holding_of(lease)
    if holding.release_is_unconfirmed:
        refused = f" ({holding.unreleased})" if holding.unreleased else ""
        logger.warning(
            "task-release-unconfirmed",
            "Task %(task)s[%(task_id)s] held its %(lease)s to the end, but no quorum of nodes "
            "confirmed the release%(refusals)s. Nodes that missed it keep the lock for up to "
            "%(seconds).3g s more%(instead)s.",
            task=task,
            task_id=task_id,
            lease=lease_in_words(lease),
            refusals=refused,
            seconds=min(lease.ttl, max(0.0, holding.valid_until - holding.now())),
            instead=f", instead of the {kept_for:.3g} s for which it was to be kept"
            if kept_for
            else "",
        )
        return
    logger.warning(
        "task-ended-without-lease",
        "Task %(task)s[%(task_id)s] ended without its %(lease)s: %(reason)s. %(consequence)s",
        task=task,
        task_id=task_id,
        lease=lease_in_words(lease),
        reason=lost or LossReason.GONE,
        consequence="Another body may have run beside its last part; a resource that checks "
        "fencing tokens has refused the writes that came too late."
        if under_lease
        else "If its message was delivered again, a second body may have run.",
    )


_current: ContextVar[RunningLock | None] = ContextVar("celery_redlock_running_lock", default=None)
_active: set[RunningLock] = set()


def current_running_lock() -> RunningLock | None:
    """Return the running lock of the body here, if it locks; in a forked child, its parent's."""
    return _current.get()


def any_active() -> bool:
    """Return whether a locking task is under way in this process."""
    return any(running_lock.body.pid == os.getpid() for running_lock in tuple(_active))


def running_lock_of(request: RequestLike | None) -> RunningLock | None:
    """Return the lock of a request, until it is released."""
    held: RunningLock | None = None if request is None else state_of(request).running_lock
    return held


def _sweep_orphans() -> None:
    """
    End the running locks whose `task_postrun` never came.

    A time limit may strike in Celery's tracer just before it sends the signal. The marker would
    then be extended for as long as the process lives.
    """
    for running_lock in tuple(_active):
        if (
            running_lock.body.finished
            and running_lock.body.pid == os.getpid()
            and running_lock.body.thread == threading.get_ident()
            and running_lock.request not in running_lock.task.request_stack.stack
        ):
            running_lock.end()


#: The state that Celery makes of what a body raised.
_STATES = {
    Raised.NOTHING: CeleryState.SUCCESS,
    Raised.RETRY: CeleryState.RETRY,
    Raised.IGNORE: CeleryState.IGNORED,
    Raised.YIELDED: CeleryState.IGNORED,
    Raised.REJECT: CeleryState.REJECTED,
    Raised.REJECT_TO_QUEUE: CeleryState.REJECTED,
    Raised.EXCEPTION: CeleryState.FAILURE,
    Raised.PROCESS_END: CeleryState.NONE,
}


def celery_state(error: BaseException | None) -> str | None:
    """Return the state that Celery makes of what a body raised; None if it makes none."""
    return _STATES[raised_by(error)].value or None


def ended_of(
    lock_request: LockRequest,
    state: State,
    reported: str | None,
    result: Any,
    unwinding: BaseException | None,
) -> Ended:
    """
    Return the facts about the end of a request.

    Args:
        lock_request: what it took.
        state: how far it came.
        reported: Celery's state; None if Celery made none.
        result: the result, or the exception that made the state.
        unwinding: an exception on its way through Celery's tracer, which comes after the state.
    """
    rejected = unwinding if isinstance(unwinding, Reject) else result
    known = {kind.value: kind for kind in CeleryState}
    return Ended(
        state=state,
        celery_state=known.get(reported or "", CeleryState.OTHER),
        rejection=raised_by(rejected) if isinstance(rejected, Reject) else Raised.NOTHING,
        process_ends=raised_by(unwinding) is Raised.PROCESS_END,
        retry_is_out=getattr(result, "sig", None) is not None,
        acks_late=bool(lock_request.task.acks_late),
        failure_is_final=failure_is_final(lock_request.task),
        eager=bool(lock_request.request.is_eager),
    )


def release_plan(
    lock_request: LockRequest,
    ending: Ending,
    *,
    state: State,
    unrun_as: Role | None,
    handover: Reservation | None,
    age: float,
) -> tuple[Mapping[Key, ReleaseAction], Reservation | None]:
    """
    Return an action for each key that is not deleted, and the reservation that gets the keys.

    Args:
        lock_request: what the request took.
        ending: how it ended.
        state: how far it came.
        unrun_as: the role that its marker gets, where it ends without its body.
        handover: the lock of the message that continues it.
        age: seconds since the lock was taken.
    """
    window, brought = lock_request.window_remaining, lock_request.envelope.reservation
    minimum = lock_request.options.at_least_for - age
    remains = Remains(
        ending=ending,
        state=state,
        unrun_as=unrun_as,
        for_tick=lock_request.tick is not None,
        held_in_body=lock_request.options.mode_spec.in_body,
        can_give_back=brought is not None
        and bool(lock_request.transferable_keys)
        and brought.expires_at > time.time(),
        has_window=window is not None,
        window_is_over=not window,
        has_minimum=minimum > 0,
    )
    actions: dict[Key, ReleaseAction] = {}
    role = marker_after(remains)
    if lock_request.dedupe_key and role is not None:
        marker = Key.record(lock_request.dedupe_key)
        actions[marker] = _as_over(lock_request, role, lock_request.marker_ttl)
    keys = keys_after(remains)
    if keys is Keys.KEEP_FOR_WINDOW:
        kept = _as_over(lock_request, Role.FINISHED, window or 0.0)
        actions.update(dict.fromkeys(lock_request.keys, kept))
    elif keys is Keys.KEEP_FOR_MINIMUM:
        # The owner value stays: others wait for the end of this time, as for that of a body.
        kept = ReleaseAction(keep_ms=_keep_ms(minimum))
        actions.update(dict.fromkeys(lock_request.keys, kept))
    return actions, {Keys.HAND_OVER: handover, Keys.GIVE_BACK: brought}.get(keys)


def failure_is_final(task: TaskLike) -> bool:
    """Return whether the message of a failed task is acknowledged, rather than rejected."""
    acknowledged = getattr(task, "acks_on_failure", None)  # new in Celery 5.7
    if acknowledged is None:
        acknowledged = task.acks_on_failure_or_timeout
    return bool(acknowledged or not task.acks_late)


def _as_over(lock_request: LockRequest, role: Role, seconds: float) -> ReleaseAction:
    owner = lock_request.client.new_owner_value(lock_request.label_as(role))
    return ReleaseAction(keep_ms=_keep_ms(seconds), value=owner)


def _keep_ms(seconds: float) -> int:
    return max(1, milliseconds(seconds))  # a key that is kept for 0 ms is deleted
