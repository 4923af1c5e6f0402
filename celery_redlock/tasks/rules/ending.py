"""
Decisions about a request's lock, marker and reservation when the request ends.

A broker may deliver a message again after its task has run. The marker shows whether another body
would be one too many: it stays, as *finished*, if the outcome is out (a result, or a message that
continues the task). It is deleted if the next delivery has to do the work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from celery_redlock.tasks.rules.facts import Raised, Role, Row, first_match


class State(Enum):
    """How far a request has come; its lease and its reservation are values beside this."""

    WAITING = auto()  #: its body has not begun
    UNRUN = auto()  #: it ends without its body, and holds only its marker
    RUNNING = auto()  #: its body has begun
    CONTINUED = auto()  #: the same, and a retry or a replacement is out, without the lock
    HANDED_OVER = auto()  #: the same, and that message gets the lock
    ENDED = auto()  #: all that it held is released, kept or handed over

    @property
    def has_run(self) -> bool:
        """Whether its body has begun; not whether that has ended."""
        return self in (State.RUNNING, State.CONTINUED, State.HANDED_OVER)

    @property
    def is_continued(self) -> bool:
        """Whether another message continues its task."""
        return self in (State.CONTINUED, State.HANDED_OVER)


class Move(Enum):
    """The causes that move a request to another state."""

    MARK = auto()  #: it took its marker, to end without its body
    BEGIN = auto()  #: its body begins
    CONTINUE = auto()  #: a message that continues it is out
    HAND_OVER = auto()  #: the same, and that message gets the lock
    END = auto()


#: Every legal move. A body may send several messages that continue it; the lock passes to the last
#: one that can have it. The application may also continue the task before the body (in a function
#: for `lock_on_conflict`) or after it (in a signal handler), which changes no state.
MOVES: Mapping[tuple[State, Move], State] = {
    (State.WAITING, Move.MARK): State.UNRUN,
    (State.WAITING, Move.BEGIN): State.RUNNING,
    (State.WAITING, Move.CONTINUE): State.WAITING,
    (State.UNRUN, Move.CONTINUE): State.UNRUN,
    (State.RUNNING, Move.CONTINUE): State.CONTINUED,
    (State.RUNNING, Move.HAND_OVER): State.HANDED_OVER,
    (State.CONTINUED, Move.CONTINUE): State.CONTINUED,
    (State.CONTINUED, Move.HAND_OVER): State.HANDED_OVER,
    (State.HANDED_OVER, Move.CONTINUE): State.HANDED_OVER,
    (State.ENDED, Move.CONTINUE): State.ENDED,
    (State.HANDED_OVER, Move.HAND_OVER): State.HANDED_OVER,
    **{(state, Move.END): State.ENDED for state in State},
}


class IllegalMoveError(RuntimeError):
    """A request cannot do this in its state; nothing was changed."""


def moved(state: State, move: Move) -> State:
    """
    Return a request's next state.

    Raises:
        IllegalMoveError: the state does not allow the move.
    """
    try:
        return MOVES[state, move]
    except KeyError:
        raise IllegalMoveError(f"a request that is {state.name} cannot {move.name}") from None


class CeleryState(StrEnum):
    """The state that Celery makes of what a body returned or raised."""

    NONE = ""  #: an exception came before Celery made a state
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    RETRY = "RETRY"
    IGNORED = "IGNORED"
    REJECTED = "REJECTED"
    OTHER = "OTHER"


class Ending(Enum):
    """How a request ended, as far as its lock is concerned."""

    DONE = auto()  #: its outcome is stored or sent
    IGNORED = auto()  #: the body has ended and wants no outcome
    REJECTED = auto()  #: the body has ended, and its message goes to the dead letters or is gone
    REDELIVERED = auto()  #: the broker delivers the message again, with the lock that it brought
    INTERRUPTED = auto()  #: the next delivery of the message begins anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """
    The facts of a request that ends.

    Attributes:
        state: how far it came.
        celery_state: the state that Celery makes of it.
        rejection: `Raised.REJECT` or `Raised.REJECT_TO_QUEUE`, if its body raised `Reject`, or
            Celery's tracer does after the body.
        process_ends: an exception that ends the process passes through Celery's tracer, perhaps
            before the outcome is out.
        retry_is_out: the body raised `Retry` and has sent a message.
        acks_late: its message is acknowledged after the body.
        failure_is_final: a failed task's message is acknowledged, not rejected.
        eager: it runs under `apply()`.
    """

    state: State
    celery_state: CeleryState
    rejection: Raised
    process_ends: bool
    retry_is_out: bool
    acks_late: bool
    failure_is_final: bool
    eager: bool

    @property
    def failed(self) -> bool:
        """Whether it failed; `apply()` may raise the exception itself."""
        eagerly = self.celery_state is CeleryState.NONE and self.eager
        return eagerly or self.celery_state is CeleryState.FAILURE


ENDINGS: tuple[Row[Ended, Ending], ...] = (
    Row("another message continues it", lambda e: e.state.is_continued, Ending.DONE),
    Row("it ends without its body", lambda e: e.state is State.UNRUN, Ending.DONE),
    Row(
        "Reject, back to the queue",
        lambda e: e.rejection is Raised.REJECT_TO_QUEUE and e.acks_late,
        Ending.REDELIVERED,
    ),
    Row(
        "Reject",
        lambda e: e.rejection in (Raised.REJECT, Raised.REJECT_TO_QUEUE),
        Ending.REJECTED,
    ),
    Row("the process ends", lambda e: e.process_ends, Ending.INTERRUPTED),
    Row(
        "Retry, and its message is sent",
        lambda e: e.celery_state is CeleryState.RETRY and e.retry_is_out and not e.eager,
        Ending.DONE,
    ),
    Row("Ignore", lambda e: e.celery_state is CeleryState.IGNORED, Ending.IGNORED),
    Row("success", lambda e: e.celery_state is CeleryState.SUCCESS, Ending.DONE),
    Row("failure", lambda e: e.failed and e.failure_is_final, Ending.DONE),
    Row("failure, and its message is rejected", lambda e: e.failed, Ending.REJECTED),
    Row("no outcome is stored or sent", lambda _: True, Ending.INTERRUPTED),
)


def ending_of(ended: Ended) -> Ending:
    """Return how a request ended."""
    return first_match(ENDINGS, ended).then


class Keys(Enum):
    """The end of the lock keys of a request that ends."""

    RELEASE = auto()
    HAND_OVER = auto()  #: set to the reservation of the message that continues it
    GIVE_BACK = auto()  #: set to the reservation that the message brought
    KEEP_FOR_WINDOW = auto()  #: set to *finished* for the rest of `lock_window`
    KEEP_FOR_MINIMUM = auto()  #: kept for the rest of `lock_at_least_for`


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """
    The facts when the keys of a request are released.

    Attributes:
        ending: how it ended.
        state: how far it came.
        unrun_as: its marker, if it ends without its body: see `arrival.MARKED_AS`.
        for_tick: a schedule sent it.
        held_in_body: its mode holds the keys while the body runs.
        can_give_back: it brought a lock for the keys that it holds, which has not expired.
        has_window: its mode keeps the keys for `lock_window`.
        window_is_over: that time has passed.
        has_minimum: `lock_at_least_for` has not passed.
    """

    ending: Ending
    state: State
    unrun_as: Role | None
    for_tick: bool
    held_in_body: bool
    can_give_back: bool
    has_window: bool
    window_is_over: bool
    has_minimum: bool


MARKERS: tuple[Row[Remains, Role | None], ...] = (
    Row(
        "a tick that ends without its body",
        lambda r: r.state is State.UNRUN and r.for_tick,
        Role.SKIPPED,
    ),
    Row(
        "a message that fails without its body",
        lambda r: r.state is State.UNRUN and r.unrun_as is Role.FAILED,
        Role.FAILED,
    ),
    # For other messages of the tick the work is over; the broker may deliver this one again.
    Row(
        "a tick whose body wants no outcome, or is rejected",
        lambda r: r.for_tick and r.ending in (Ending.IGNORED, Ending.REJECTED),
        Role.ABANDONED,
    ),
    Row("its outcome is stored or sent", lambda r: r.ending is Ending.DONE, Role.FINISHED),
    Row("the next delivery does the work", lambda _: True, None),
)

KEYS: tuple[Row[Remains, Keys], ...] = (
    Row("it holds only its marker", lambda r: r.state is State.UNRUN, Keys.RELEASE),
    Row("its mode released them before the body", lambda r: not r.held_in_body, Keys.RELEASE),
    Row(
        "the message that continues it gets them",
        lambda r: r.state is State.HANDED_OVER,
        Keys.HAND_OVER,
    ),
    Row(
        "the broker delivers its message again",
        lambda r: r.ending is Ending.REDELIVERED and r.can_give_back,
        Keys.GIVE_BACK,
    ),
    # A retry or a replacement that did not get this lock may need it.
    Row(
        "its window, but another message may need the keys",
        lambda r: (
            r.has_window
            and (
                r.state is State.CONTINUED
                or r.ending in (Ending.REDELIVERED, Ending.REJECTED, Ending.INTERRUPTED)
            )
        ),
        Keys.RELEASE,
    ),
    Row("its window is over", lambda r: r.has_window and r.window_is_over, Keys.RELEASE),
    Row("its window", lambda r: r.has_window, Keys.KEEP_FOR_WINDOW),
    Row("its minimum hold", lambda r: r.has_minimum, Keys.KEEP_FOR_MINIMUM),
    Row("its work is over", lambda _: True, Keys.RELEASE),
)


def marker_after(remains: Remains) -> Role | None:
    """Return the marker's new role, or None if it is deleted."""
    return first_match(MARKERS, remains).then


def keys_after(remains: Remains) -> Keys:
    """Return what becomes of the lock keys."""
    return first_match(KEYS, remains).then


class Moment(Enum):
    """When the keys of a request are released, kept or handed over."""

    NOW = auto()  #: its body has just unwound, or does not begin
    AT_POSTRUN = auto()  #: when Celery has stored the result and sent what follows


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """
    The facts when a body has unwound.

    Attributes:
        holds_until_result: the request has a marker, or a lock that outlasts its body.
        process_ends: an exception that ends the process is passing through.
        is_traced: Celery will send `task_postrun` for the request.
    """

    holds_until_result: bool
    process_ends: bool
    is_traced: bool


MOMENTS: tuple[Row[Leaving, Moment], ...] = (
    Row("nothing outlasts the body", lambda e: not e.holds_until_result, Moment.NOW),
    Row("the process ends", lambda e: e.process_ends, Moment.NOW),
    Row("Celery will not send task_postrun", lambda e: not e.is_traced, Moment.NOW),
    Row("its result comes first", lambda _: True, Moment.AT_POSTRUN),
)


def moment_of(leaving: Leaving) -> Moment:
    """Return when the keys of a request are released, kept or handed over."""
    return first_match(MOMENTS, leaving).then


@dataclass(frozen=True, slots=True, kw_only=True)
class Unused:
    """
    The facts of a reservation that no body took over.

    Attributes:
        state: how far its request came.
        raised: the exception with which the request ends.
        acks_late: its message is acknowledged after the body.
    """

    state: State
    raised: Raised
    acks_late: bool


RESERVATIONS: tuple[Row[Unused, bool], ...] = (
    Row("its body ran without the lock", lambda u: u.state.has_run, False),
    Row("another delivery has it, or brings it", lambda u: u.raised is Raised.YIELDED, True),
    Row("its message is requeued with it", lambda u: u.raised is Raised.RETRY, True),
    Row(
        "the broker delivers its message again",
        lambda u: u.raised in (Raised.REJECT_TO_QUEUE, Raised.PROCESS_END) and u.acks_late,
        True,
    ),
    Row("its message is over", lambda _: True, False),
)


def keeps_reservation(unused: Unused) -> bool:
    """Return whether a reservation is left to its message; otherwise it is cancelled."""
    return first_match(RESERVATIONS, unused).then
