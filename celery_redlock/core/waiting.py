"""
The loop of a call that did not get its lock at once, for threads and for event loops.

`retries` is the loop. It yields steps; a driver carries each one out and sends the result back:
`in_thread` blocks meanwhile, `in_event_loop` awaits. A tenacity policy sets the length of each
pause. Nodes that refuse the call remember it, and end its pause when they may grant the keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import Awaitable, Callable, Generator, Iterator
from dataclasses import dataclass, replace
from enum import Flag, auto
from typing import Any, TypeAlias

from tenacity import BaseRetrying, RetryAction, RetryCallState, Retrying

from celery_redlock.core.attempt import AcquireParams, Attempt, attempt_once, forget
from celery_redlock.core.failures import Refusal, refusal_of
from celery_redlock.core.settings import DEFAULT_POLICY, RetryPolicy
from celery_redlock.protocol.commands import Waiter
from celery_redlock.protocol.keys import wake_channel
from celery_redlock.protocol.timing import milliseconds
from celery_redlock.transport import Listener, Transport, WaitingCall

#: Seconds of retries even at `wait=0`: after a split vote, which proves no holder, and after a
#: missed quorum while nodes were backing off.
SPLIT_BUDGET = 0.25

#: Seconds for which a call must wait at least to listen: for less, a subscription does not pay.
LISTENS_FROM = 0.1

#: Seconds between the attempts of a call that a release would wake, unless it has a policy of its
#: own.
_LISTENING_PAUSE = 1.0

#: Shortest such pause of a call that decides after each attempt, by the age of the holder among
#: others: it pauses for as long as it has waited, between this and `_LISTENING_PAUSE`.
_FIRST_PAUSE = 0.05

#: Seconds for which nodes keep a wait queue, counted anew from each attempt.
_KEEP = 3600.0

#: Limit on all waits for locks in this process, in seconds; see `limit_waits`, which is for tests.
_limit = math.inf


class After(Flag):
    """The next step of a call whose attempt others refused."""

    END = 0  #: try no more
    WAIT = auto()  #: pause and try again, while there is time
    REGISTER = auto()  #: then try once more, so that the nodes that refuse it remember the caller


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryOptions:
    """
    How a call that did not get its keys tries again.

    Attributes:
        seconds: for how long it retries.
        policy: a tenacity wait, or a whole `Retrying`, whose own stop then counts as well.
        undecided: minimum seconds of retries while attempts end undecided.
        listens: whether nodes that refuse the call shall wake it.
        waiter: the waiter of its attempts; None: a new one, which ends with the call.
        registers_as: called before the attempt that registers the caller; returns the waiter of
            that attempt, or None to make none.
        decide: called once after each attempt that others refused; returns the next step. None:
            the call waits.
    """

    seconds: float
    policy: RetryPolicy
    undecided: float = SPLIT_BUDGET
    listens: bool = True
    waiter: Waiter | None = None
    registers_as: Callable[[], Waiter | None] | None = None
    decide: Callable[[Refusal], After] | None = None


@dataclass(frozen=True, slots=True)
class Listen:
    """Listen for the wake-ups of a waiter, and send back the `Listener`."""

    node_keys: tuple[str, ...]
    name: str


#: A step: make an attempt with these parameters, and send back the `Attempt`; listen; or let time
#: pass until this moment, on the transport's clock, and send back whether a wake-up came before.
Step: TypeAlias = AcquireParams | Listen | float
Steps: TypeAlias = Generator[Step, Any, tuple[Attempt, int]]


def retries(transport: Transport, options: RetryOptions, first: Attempt) -> Steps:
    """
    Try again after a first attempt that was not granted.

    The call begins to listen once others have refused it, and from then on its attempts have its
    name, so that a release after a refusal wakes it. Attempts after a wake-up do not count for the
    policy, except the one that ends the wait. Nodes forget a call that ends without its keys, also
    one whose driver closes the steps.

    Returns:
        The last attempt, and how many there were.
    """
    return _Call(transport, options, first).steps()


class _Pauses:
    """
    The pauses of one call.

    The policy is a tenacity wait, or a whole `Retrying`, whose wait, stop and hooks count. The
    call's own loop makes the attempts and sleeps.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy if isinstance(policy, BaseRetrying) else Retrying(wait=policy)
        self._state = RetryCallState(self._policy, None, (), {})

    def after(self, attempt: object, left: Callable[[], float]) -> float | None:
        """
        Return for how many seconds to pause after an attempt; None: make no other.

        Args:
            attempt: the attempt, which the policy gets as its outcome.
            left: returns the seconds that the call has left. The last pause takes no more than
                these, so that the last attempt comes at their end.
        """
        policy, state = self._policy, self._state
        if not getattr(policy, "enabled", True):  # older versions of tenacity have no such switch
            return None
        state.set_result(attempt)
        if policy.after is not None:
            policy.after(state)
        state.upcoming_sleep = pause = min(policy.wait(state), max(0.0, left()))
        if left() <= 0 or policy.stop(state):
            return None
        state.idle_for += pause
        state.next_action = RetryAction(pause)
        if policy.before_sleep is not None:
            policy.before_sleep(state)
        state.prepare_for_next_attempt()
        return pause

    def before_attempt(self) -> None:
        """Call the policy's hook for an attempt that follows a pause."""
        if self._policy.before is not None:
            self._policy.before(self._state)


class _Call:
    """A call while it waits."""

    def __init__(self, transport: Transport, options: RetryOptions, first: Attempt) -> None:
        self._transport = transport
        self._params = first.params
        self._options = options
        self._begun = transport.now()
        # Its own waiter is kept for as long as the call waits.
        self._waiter = options.waiter or Waiter(
            os.urandom(8).hex(), transport.wall_us() // 1000, keep_ms=0
        )
        self._listener: Listener | None = None
        self._keep_ms = 0  # for how long nodes keep its own waiter from the latest attempt
        self._made = 0
        self._note(first)

    def steps(self) -> Steps:
        waiter = None
        try:
            if After.WAIT in self._after:
                yield from self._wait()
            if After.REGISTER in self._after and self._options.registers_as is not None:
                waiter = self._options.registers_as()
        finally:
            if waiter is None and not self._attempt.is_granted:
                self._forget()
        if waiter is None:
            return self._attempt, self._made
        once = replace(self._options, seconds=0.0, registers_as=None)
        registered = yield replace(self._params, waiter=waiter)
        last, made = yield from retries(self._transport, once, registered)
        return last, self._made + made

    def _wait(self) -> Generator[Step, Any, None]:
        pauses = _Pauses(self._options.policy)
        while After.WAIT in self._after:
            pause = pauses.after(self._attempt, self._left)
            if pause is None:
                break
            if self._begins_to_listen():
                self._listener = yield Listen(
                    tuple(key.stored for key in self._params.keys), self._waiter.name
                )
                self._listener.on_close = self._forget
                # The keys may have become free before it listened.
                if not (yield from self._is_refused_again()):
                    continue
            until = self._until(pause)
            while (yield until):
                if not (yield from self._is_refused_again()):
                    break
            else:
                pauses.before_attempt()
                self._note((yield self._next_params()))

    def _forget(self) -> None:
        if self._keep_ms:
            forget(self._transport, self._attempt, self._waiter)

    def _note(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._made += 1
        self._after = After.END if attempt.is_granted else After.WAIT
        if self._options.decide is not None and attempt.is_refused:
            self._after = self._options.decide(refusal_of(attempt))

    def _is_refused_again(self) -> Generator[Step, Any, bool]:
        """Try once because of a wake-up; return whether the pause continues."""
        self._note((yield self._next_params()))
        return self._attempt.is_refused and After.WAIT in self._after

    def _left(self) -> float:
        """Return for how many more seconds it may try."""
        undecided = self._options.undecided if self._attempt.is_undecided else 0.0
        return self._begun + max(self._options.seconds, undecided) - self._transport.now()

    def _next_params(self) -> AcquireParams:
        if self._listener is None:
            first = self._params.waiter
            if first is None or not first.keep_ms:
                return self._params
            return replace(self._params, waiter=replace(first, has_waited=True))
        left = min(_KEEP, max(0.0, self._end - self._transport.now()))
        keep_ms = self._waiter.keep_ms or milliseconds(left)
        if self._options.waiter is None:  # a name that the caller gave may be registered next
            self._keep_ms = keep_ms
        return replace(self._params, waiter=replace(self._waiter, keep_ms=keep_ms, has_waited=True))

    @property
    def _end(self) -> float:
        return self._begun + self._options.seconds

    def _begins_to_listen(self) -> bool:
        options = self._options
        if self._listener is not None or not options.listens or options.seconds < LISTENS_FROM:
            return False
        # A call whose turn is near tries again before it could listen.
        return self._attempt.is_refused and not 0 < self._attempt.turn_in < LISTENS_FROM

    def _until(self, seconds: float) -> float:
        """Return the end of a pause for which the policy asks for these seconds."""
        now = self._transport.now()
        if not self._options.listens:
            return now + seconds
        longest = min(_LISTENING_PAUSE, self._end - now)
        # No release makes the turn earlier, but it comes earlier if others do not use theirs.
        if turn := self._attempt.turn_in:
            return now + max(0.0, min(turn, longest))
        listens = self._listener is not None and self._listener.is_live
        has_own_policy = self._options.policy is not DEFAULT_POLICY
        if listens and not has_own_policy and self._attempt.is_refused:
            if self._options.decide is not None:
                longest = min(longest, max(_FIRST_PAUSE, now - self._begun))
            seconds = max(seconds, longest)
        return now + seconds


def in_thread(
    steps: Steps, transport: Transport, check_open: Callable[[], None]
) -> tuple[Attempt, int]:
    """
    Carry the steps out in this thread or greenlet.

    Args:
        steps: the steps of a call.
        transport: to the nodes.
        check_open: raises if the client is closed.
    """
    call: WaitingCall | None = None
    reply: Any = None
    try:
        while True:
            step = steps.send(reply)
            check_open()
            if isinstance(step, AcquireParams):
                reply = attempt_once(transport, step)
            elif isinstance(step, Listen):
                reply = call = WaitingCall(transport.wake_ups, step.node_keys, step.name)
            else:
                reply = _pause(transport, call, step)
    except StopIteration as end:
        last: tuple[Attempt, int] = end.value
        return last
    finally:
        if call is not None:
            call.close()
        steps.close()


def _pause(transport: Transport, call: WaitingCall | None, until: float) -> bool:
    while (left := until - transport.now()) > 0:
        if call is None:
            transport.sleep(left)
            return False
        if transport.wait(call, left):
            return True
    return False


async def in_event_loop(
    steps: Steps,
    transport: Transport,
    check_open: Callable[[], None],
    attempt: Callable[[AcquireParams], Awaitable[Attempt]],
) -> tuple[Attempt, int]:
    """
    Carry the steps out, and let other coroutines run meanwhile.

    Args:
        steps: the steps of a call.
        transport: to the nodes.
        check_open: raises if the client is closed.
        attempt: makes an attempt outside of the event loop.
    """
    listener: Listener | None = None
    woken = asyncio.Event()
    reply: Any = None
    try:
        while True:
            step = steps.send(reply)
            check_open()
            if isinstance(step, AcquireParams):
                reply = await attempt(step)
            elif isinstance(step, Listen):
                reply = listener = _listen(transport, step, woken)
            else:
                reply = await _pause_in_event_loop(transport, woken, step)
    except StopIteration as end:
        last: tuple[Attempt, int] = end.value
        return last
    finally:
        if listener is not None:
            listener.close()
        steps.close()


async def _pause_in_event_loop(transport: Transport, woken: asyncio.Event, until: float) -> bool:
    while (left := until - transport.now()) > 0:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(woken.wait(), left)
            woken.clear()
            return True
    return False


def _listen(transport: Transport, step: Listen, woken: asyncio.Event) -> Listener:
    loop = asyncio.get_running_loop()

    def on_live() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(woken.set)

    def on_wake(name: str, channel: str) -> None:
        if name == step.name:
            on_live()

    return Listener(transport.wake_ups, map(wake_channel, step.node_keys), on_wake, on_live)


def limited(seconds: float) -> float:
    """Return a number of seconds to wait, or the limit if that is less."""
    return min(seconds, _limit)


def described(setting: str, seconds: float) -> str:
    """Return what ended a wait: a setting, or the limit of a test if that is less."""
    if _limit < seconds:
        return f"{_limit:g} s, the limit of this test (the fixture redlock_testing)"
    return f"{setting} = {seconds:g} s"


@contextlib.contextmanager
def limit_waits(seconds: float) -> Iterator[None]:
    """Within the block, let nothing in this process wait for a lock for longer than this."""
    global _limit
    before, _limit = _limit, seconds
    try:
        yield
    finally:
        _limit = before
