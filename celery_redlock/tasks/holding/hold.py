"""
What a request holds, from before it is taken until it is finished.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextvars import ContextVar
from typing import Any

from celery.exceptions import Ignore, Reject, Retry
from celery.utils.log import get_logger

from celery_redlock.core import Lease, Reservation, set_current_lease
from celery_redlock.errors import QuorumUnavailable
from celery_redlock.protocol.texts import shortened
from celery_redlock.tasks.holding.arrival import Claim
from celery_redlock.tasks.holding.body import Body
from celery_redlock.tasks.holding.finishing import ending_of, fates_of, state_of
from celery_redlock.tasks.holding.keeper import Keeper
from celery_redlock.tasks.holding.reach import Reach, reach_here
from celery_redlock.tasks.messages.owners import Role, read_owner
from celery_redlock.tasks.messages.places import mark_of_digest

__all__ = ["TRACED", "Hold", "bodies_run", "comes_again", "current_hold", "hold_of"]

logger = get_logger(__name__)

#: What the mark of a message says that will not run.
DROPPED = (Role.FAILED, Role.REVOKED)


class Hold:
    """
    A request's lock and mark.

    Attributes:
        task: the task that runs.
        request: its request.
        claim: what it takes.
        enclosing: the hold of the body that runs this task eagerly, if any.
        body: the stretch in which the loss of the lease matters.
        lease: what was taken.
        keeper: keeps that where a newer run may ask for it; None where none may.
        shown: the lease that the body is under; None where its lock is not for the body.
        handed: the lock of the message that continues this one: a retry, or a replacement.
        continued: such a message is out, with or without the lock.
        ran: the body has begun.
        settled: only the mark was taken, for a message that ends without its body; what it says.
    """

    __slots__ = (
        "_reach",
        "_surrounding",
        "_taken_at",
        "body",
        "claim",
        "continued",
        "enclosing",
        "handed",
        "keeper",
        "lease",
        "ran",
        "request",
        "settled",
        "shown",
        "task",
    )

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.task = claim.task
        self.request = claim.request
        self.enclosing: Hold | None = _current.get()
        self.body: Body = Body()
        self.lease: Lease | None = None
        self.keeper: Keeper | None = None
        self.shown: Lease | None = None
        self.handed: Reservation | None = None
        self.continued = self.ran = False
        self.settled: Role | None = None
        self._reach: Reach | None = None
        self._taken_at = 0.0
        # A task may be called where an exception is being handled; that one is not its own.
        self._surrounding = sys.exc_info()[1]

    @property
    def age(self) -> float:
        """Seconds since the lock was taken."""
        return time.monotonic() - self._taken_at

    def begin(self) -> None:
        """Become what this thread or greenlet is at."""
        if self.claim.marks:
            _end_forgotten()
        self.request.redlock_hold = self
        _current.set(self)
        set_current_lease(None)
        _holds.add(self)

    def take_over(self, lease: Lease) -> None:
        """Hold what was taken; the body may begin."""
        self.lease = lease
        self._taken_at = time.monotonic()
        in_body = self.claim.options.rules.in_body
        if not in_body and not self.claim.message:
            lease.release()
            self.lease = None
            return
        if self.claim.not_in_body:
            lease.release_keys(self.claim.not_in_body)
        if self.claim.companions:
            self.keeper = Keeper(self.claim, lease)
        if self.claim.keys and in_body:
            self.shown = lease
            self.request.fencing_token = lease.fencing_token
            set_current_lease(lease)

    def reach(self, lost_signal: int) -> Reach:
        """Prepare the way for a `LeaseLost` into the body that is about to run here."""
        self._reach = reach_here(self.body, lost_signal)
        return self._reach

    def forget_thrown(self) -> None:
        """Throw nothing at this thread any more, and take back what has not landed."""
        if self._reach is not None:
            self._reach.forget()

    def take_back(self) -> None:
        """What was thrown at this thread and has not landed waits: the application's part ends."""
        if self._reach is not None:
            self.body.take_back(self._reach.recall)

    def leave(self) -> None:
        """
        The body has unwound, or will not begin.

        What was taken is released; where the message has a mark, only when Celery has stored the
        result and sent on what follows (`task_postrun`), unless that will not come.
        """
        error = self._unwinding()
        self._leave_body()
        if self.lease is None or self.settled:
            self._give_reservation_up(error)
        if self.keeper is not None and os.getpid() == self.body.pid:
            self.keeper.close()
        waits = self.lease is not None and self.claim.marks
        orderly = error is None or isinstance(error, Exception)
        # The message of a tick comes through Celery's tracer: nothing else reads our header.
        traced = self.request.redlock_traced is TRACED or self.claim.tick is not None
        if not (waits and orderly and traced):
            self.end(state_of(error), error)

    def end(self, state: str | None = None, outcome: Any = None) -> None:
        """Release or hand on what is held; a forked child leaves its parent's lock alone."""
        self._leave_body()
        if self.lease is not None and os.getpid() == self.body.pid:
            lease, excused = self.lease, self.body.landed
            if self.keeper is not None:
                lease, asked = self.keeper.end()
                excused = excused or asked
            lost = lease.lost
            if not self._let_go(lease, state, outcome) and not excused:
                self._warn(lease, lost)
        _holds.discard(self)
        # Last: until it is done, `task_postrun` finds the hold here.
        self.request.redlock_hold = ENDED

    def _leave_body(self) -> None:
        if os.getpid() == self.body.pid:
            self.body.leave(self.forget_thrown)
        if _current.get() is self:
            _current.set(self.enclosing)
            set_current_lease(self.enclosing.shown if self.enclosing else None)

    def _let_go(self, lease: Lease, state: str | None, outcome: Any) -> bool:
        if not self.claim.marks:
            return lease.release()
        ending = ending_of(self, state, outcome, self._unwinding())
        fates, successor = fates_of(self, ending)
        held = lease.release_with(fates, successor, grace=self.claim.options.publish_grace)
        if successor is not None and successor is self.handed:
            self._take_back_if_dropped(successor)
        return held

    def _take_back_if_dropped(self, successor: Reservation) -> None:
        """
        Free the lock that was handed on, if its message has been dropped meanwhile.

        A worker that drops it says so in its mark, and frees the lock after that. So the lock
        was there to be freed, or its mark is seen here.
        """
        redlock, owner = self.claim.redlock, read_owner(successor.owner)
        if owner is None or owner.mark is None:
            return
        try:
            (found,) = redlock.reservations.inspect([mark_of_digest(owner.mark)])
        except QuorumUnavailable:
            return
        marked = None if found is None else read_owner(found.owner)
        if marked is not None and marked.role in DROPPED:
            redlock.reservations.cancel(successor)

    def _give_reservation_up(self, error: BaseException | None) -> None:
        """Cancel the lock that the message brought and that no body took over, if all is over."""
        reservation = self.claim.envelope.reservation
        if reservation is None or os.getpid() != self.body.pid:
            return
        # A twin's lock is its sibling's; that of a task that was replaced is nobody's.
        twin = isinstance(error, Ignore) and not self.settled
        if self.ran or not (twin or comes_again(self.task, error)):
            self.claim.redlock.reservations.cancel(reservation)

    def _unwinding(self) -> BaseException | None:
        """Return the exception that passes through here, if any."""
        error = sys.exc_info()[1]
        return None if error is self._surrounding else error

    def _warn(self, lease: Lease, lost: str | None) -> None:
        logger.warning(
            "Task %s[%s] ended without its %s %s: %s. %s",
            self.task.name,
            self.request.id,
            "lock" if self.shown is not None else "mark",
            shortened(lease.key),
            lost or _unconfirmed(lease),
            "Another body may have run beside its last part; a resource that checks fencing tokens "
            "has refused what came too late."
            if self.shown is not None
            else "If its message was delivered again, a second body may have run.",
        )


_current: ContextVar[Hold | None] = ContextVar("celery_redlock_hold", default=None)
_holds: set[Hold] = set()


def current_hold() -> Hold | None:
    """Return the hold of the body that runs here, if it locks; in a forked child, its parent's."""
    return _current.get()


def bodies_run() -> bool:
    """Tell whether a locking task is under way in this process."""
    return any(hold.body.pid == os.getpid() for hold in tuple(_holds))


def hold_of(request: Any) -> Hold | None:
    """Return what a request holds."""
    hold = getattr(request, "redlock_hold", None)
    return hold if isinstance(hold, Hold) else None


def _unconfirmed(lease: Lease) -> str:
    text = "a quorum of nodes did not confirm it at release"
    return f"{text} ({lease.unreleased})" if lease.unreleased else text


TRACED = object()
ENDED = object()


def comes_again(task: Any, error: BaseException | None) -> bool:
    """Tell whether a message that ends with this before its body brings its lock back here."""
    if isinstance(error, Reject):
        return bool(error.requeue)
    if error is None or isinstance(error, Exception):
        return isinstance(error, Retry)
    # The process ends: by a hard time limit, or at a shutdown. What was acknowledged is over.
    return bool(task.acks_late)


def _end_forgotten() -> None:
    """
    End what an exception has kept from being told of its end.

    A time limit may strike in the tracer just before it tells. Without this the mark would be
    renewed for as long as the process lives.
    """
    for hold in tuple(_holds):
        if (
            hold.body.left
            and hold.body.pid == os.getpid()
            and hold.body.thread == threading.get_ident()
            and hold.request not in hold.task.request_stack.stack
        ):
            hold.end()
