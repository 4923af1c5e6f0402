"""
A body, the loss of its lease, and what raises it there, as states and moves.

The shipped `Body`, interrupters and rule about frames run on made-up stacks. What an interpreter
does is modelled: an asynchronous exception lands at the next bytecode that looks for one, which is
in the same function, in the first of a function that is called, or where an exception has been
unwound to;
a signal's handler runs at any later time; the thread that throws may be held up once, between
looking for the first time and for the second.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from celery.exceptions import Retry

from celery_redlock.errors import LeaseLost
from celery_redlock.tasks import task
from celery_redlock.tasks.border import RequestState
from celery_redlock.tasks.interrupt import interrupters
from celery_redlock.tasks.interrupt.body import Body, InjectedLeaseLost
from celery_redlock.tasks.run.running_lock import RunningLock
from evidence.models.bodies import BodySetting
from evidence.models.explorer import Found, ViolationError

SIGNAL = signal.SIGUSR2
THREAD = 1

RUN = ("celery_redlock.tasks.interrupt.body", "run")
AUTORETRY = ("celery.app.autoretry", "run")
SHIELD = ("celery_redlock.tasks.run.run", "run")
APPLICATION = ("shop.tasks", "settle")
RETRY = (("celery_redlock.tasks.task", "retry"), ("celery.app.task", "retry"))

#: The places of a body, by what is on the stack above its application's code.
ABOVE: dict[str, tuple[tuple[str, str], ...]] = {
    "working": (),
    "sending": (("celery.app.base", "send_task"), ("kombu.messaging", "publish")),
    "in an eager task": (("celery.app.task", "apply"), ("shop.tasks", "other")),
    "retrying": RETRY,
    "unwinding": (),
}
SPARED = frozenset(
    {"sending", "in an eager task", "retrying", "chosen by autoretry", "autoretrying"}
)
PLACES = (*ABOVE, "shielded", "chosen by autoretry", "autoretrying", "ending", "left")


class At(NamedTuple):
    """
    A state.

    Attributes:
        place: index of `PLACES`.
        failed: the application has raised something that is no retry.
        flight: of what was thrown at a thread: 0 nothing, 1 it may land, 2 it lands now.
        sent_signal: a signal is on its way.
        out: a retry has been sent, which ends the body.
    """

    place: int = 0
    failed: int = 0
    due: int = 0
    raised: int = 0
    landed: int = 0
    over: int = 0
    flight: int = 0
    sent_signal: int = 0
    out: int = 0


def _frame(function: tuple[str, str], back: Any, number: int) -> Any:
    module, name = function
    return SimpleNamespace(
        f_globals={"__name__": module},
        f_code=SimpleNamespace(co_name=name),
        f_back=back,
        f_lasti=number,
    )


@dataclass(slots=True)
class Striking:
    """The model of one setting."""

    setting: BodySetting
    reached: set[str] = field(default_factory=set)
    _bottom: Any = None
    _frames: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        around = (AUTORETRY, SHIELD) if self.setting.autoretry else ()
        inside = {
            **{place: (*around, APPLICATION, *above) for place, above in ABOVE.items()},
            "shielded": around,
            "chosen by autoretry": (AUTORETRY,),
            "autoretrying": (AUTORETRY, *RETRY),
            "ending": (),
        }
        self._bottom = _frame(RUN, None, -1)
        for place, functions in inside.items():
            number = PLACES.index(place)
            frame = self._bottom
            for function in functions:
                frame = _frame(function, frame, number)
            self._frames[number] = frame

    def initial(self) -> At:
        return At()

    def moves(self, at: At) -> Iterator[Found]:
        if not at.due:
            yield _found(at._replace(due=1), "the lease is lost")
        yield from self._attempts(at)
        yield from self._landings(at)
        if at.flight < 2 or PLACES[at.place] in ("shielded", "ending"):
            yield from self._steps(at)

    # What the body does.

    def _steps(self, at: At) -> Iterator[Found]:
        """Yield what the body does next, if nothing lands before."""
        flight = 2 if at.flight else 0
        here = PLACES[at.place]
        for there, failed in self._ways_on(at):
            moved = at._replace(place=PLACES.index(there), failed=failed, flight=flight)
            yield _found(self._do(here, moved), f"the body goes on to be {there}")

    def _ways_on(self, at: At) -> Iterator[tuple[str, int]]:
        here = PLACES[at.place]
        end = "shielded" if self.setting.autoretry else "ending"
        if here == "working":
            yield from (("sending", 0), ("in an eager task", 0), ("retrying", 0))
            yield from ((end, 0), (end, 1))
        elif here in ("sending", "in an eager task"):
            yield "working", 0
        elif here == "retrying":
            yield "unwinding", 0
        elif here == "unwinding":
            yield end, 0
        elif here == "shielded":
            yield ("chosen by autoretry", 1) if at.failed else ("ending", 0)
        elif here == "chosen by autoretry":
            yield "autoretrying", 0
        elif here == "autoretrying":
            yield "ending", 0
        elif here == "ending":
            yield "left", 0

    def _do(self, here: str, moved: At) -> At:
        """Run what is shipped of a step, on the state that it leads to."""
        running_lock, interrupter = self._made(moved, here != "left")
        with _around(iter(())) as thrown:
            if here in ("retrying", "autoretrying"):
                _end_by_retry(running_lock)
                moved = moved._replace(out=1)
            elif here == "shielded":
                running_lock.defer_interrupt()
            elif here == "ending":
                running_lock.body.finish(interrupter.cancel)
        if moved.flight and None in thrown:
            self.reached.add("taken back")
            moved = moved._replace(flight=0)
        event = {"retrying": "retry is out", "autoretrying": "retry is out", "sending": "sent"}
        if here in event:
            self.reached.add(event[here])
        if here == "ending" and moved.due and not moved.landed:
            self.reached.add("left before it landed")
        return _read(running_lock.body, moved)

    # What strikes it.

    def _attempts(self, at: At) -> Iterator[Found]:
        if not at.due or PLACES[at.place] == "left":
            return
        here = PLACES[at.place]
        later = [PLACES.index(there) for there, _ in self._ways_on(at)] if here == "working" else []
        for second in (
            at.place,
            *(later if self.setting.way == "thread" and not at.flight else ()),
        ):
            running_lock, interrupter = self._made(at, True)
            struck = self._attempt(
                running_lock.body, interrupter, self._frames[at.place], self._frames[second]
            )
            may = (
                here == "working" and second == at.place and not (at.flight or at.landed or at.out)
            )
            if may and not struck:
                raise ViolationError(("LeaseLost is tried", ()), "a loss does not reach its body")
            found = _read(running_lock.body, at._replace(place=second))
            if not struck:
                self.reached |= {"waits for Celery"} if here in SPARED else set()
                yield _found(found, "LeaseLost waits")
                continue
            label = f"LeaseLost is thrown at a body that is {PLACES[second]}"
            if self.setting.way == "greenlet":
                yield from self._landed(found, label, entry=False)
            elif self.setting.way == "signal":
                yield _found(found._replace(sent_signal=1), label)
            else:
                yield _found(found._replace(flight=1), label)

    def _attempt(self, body: Body, interrupter: Any, first: Any, second: Any) -> bool:
        """Try once to reach the body; return whether something is on its way."""
        with _around(iter(({THREAD: first}, {THREAD: second}))) as thrown:
            if self.setting.way == "greenlet":
                interrupter._greenlet = SimpleNamespace(gr_frame=first, throw=thrown.append)
                interrupter._throw(body)
            else:
                interrupter.interrupt(body)
        return bool(thrown)

    def _landings(self, at: At) -> Iterator[Found]:
        here = PLACES[at.place]
        if at.flight:
            entry = at.flight == 2 and here in ("sending", "in an eager task", "retrying")
            label = f"LeaseLost lands in a body that is {here}"
            yield from self._landed(at._replace(flight=0), label, entry=entry)
        if at.sent_signal and here != "left":
            self._made(at, True)  # the handler knows the body that was made last
            handler: Any = signal.getsignal(SIGNAL)
            label = f"the signal arrives while the body is {here}"
            try:
                handler(SIGNAL, self._frames[at.place])
            except InjectedLeaseLost:
                found = at._replace(raised=1, sent_signal=0)
                yield from self._landed(found, label, entry=False)
            else:
                yield _found(at._replace(sent_signal=0), label)

    def _landed(self, at: At, label: str, *, entry: bool) -> Iterator[Found]:
        """Yield what becomes of a body in which the loss has become an exception."""
        here = PLACES[at.place]
        broken = {
            "a loss strikes after its body": here == "left",
            "one loss strikes twice": bool(at.landed),
            "a loss strikes in Celery's work": here in SPARED and not entry,
            "a task fails whose retry is out": bool(at.out),
        }
        for what, is_so in broken.items():
            if is_so:
                raise ViolationError((label, ()), what)
        if here == "ending":
            self.reached.add("absorbed at the end")
            yield _found(at._replace(raised=0), label)
            return
        self.reached.add("struck at an entry" if entry else "struck in the application")
        running_lock, _ = self._made(at, True)
        assert running_lock.body.due is not None
        running_lock.body.due()
        struck = _read(running_lock.body, at)
        end = "shielded" if self.setting.autoretry else "ending"
        yield _found(struck._replace(place=PLACES.index(end), failed=1), label)
        if here != "shielded":
            caught = struck._replace(place=PLACES.index("working"))
            yield _found(caught, f"{label}, and is caught")

    # Between states and what is shipped.

    def _made(self, at: At, running: bool) -> tuple[RunningLock, Any]:
        """Return the shipped objects as they are in a state."""
        body = Body()
        body.thread, body.running = THREAD, running
        body.frame = self._bottom if running else None
        body.raised, body.landed, body.over = bool(at.raised), bool(at.landed), bool(at.over)
        if at.due:
            body.due = InjectedLeaseLost.into(body, LeaseLost("lost", "k", "test"))
        interrupter = self._reach_into(body)
        running_lock = object.__new__(RunningLock)
        running_lock.body, running_lock.interrupter = body, interrupter
        return running_lock, interrupter

    def _reach_into(self, body: Body) -> Any:
        if self.setting.way == "signal":
            interrupters._main_bodies.clear()
            interrupter = interrupters.SignalInterrupter(body, SIGNAL)
            interrupter._thread = THREAD
            return interrupter
        if self.setting.way == "greenlet":
            return object.__new__(interrupters.GreenletInterrupter)
        threads = object.__new__(interrupters.ThreadInterrupter)
        threads._id, threads._thread = THREAD, None  # type: ignore[assignment]
        return threads


@contextmanager
def _around(looks: Iterator[Any]) -> Iterator[list[Any]]:
    """Let the reaches see these stacks, and give what they throw or, as None, take back."""
    thrown: list[Any] = []
    with mock.patch.multiple(
        interrupters,
        sys=SimpleNamespace(_current_frames=lambda: next(looks)),
        _throw_at=lambda thread, loss: thrown.append(loss),
        signal=SimpleNamespace(pthread_kill=lambda *_: thrown.append(SIGNAL)),
    ):
        yield thrown


def _end_by_retry(running_lock: RunningLock) -> None:
    with (
        suppress(Retry),
        task._ends_body(
            SimpleNamespace(
                request=SimpleNamespace(redlock_state=RequestState(running_lock=running_lock))
            )
        ),
    ):
        raise Retry


def _read(body: Body, at: At) -> At:
    """Return a state as the shipped body has left it."""
    return at._replace(raised=int(body.raised), landed=int(body.landed), over=int(body.over))


def _found(at: At, label: str) -> Found:
    return at, (label, ()), ()
