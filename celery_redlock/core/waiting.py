"""
Calls that wait: nodes that refuse one remember it, and wake it when the keys are released.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace

from celery_redlock.core.attempt import AcquireParams, Attempt, attempt_once
from celery_redlock.core.options import AcquireRequest
from celery_redlock.core.retry import DEFAULT_WAIT
from celery_redlock.protocol import Waiter, milliseconds
from celery_redlock.protocol.keys import wake_channel
from celery_redlock.transport import Listener, Transport, WaitingCall

#: Seconds for which a call has to wait at least to listen: for less it does not pay to subscribe.
LISTENS_FROM = 0.1

#: Seconds between the tries of a call that a release would wake, unless it has a policy of its own;
#: and of one that may give up because of what the next try shows.
_LISTENING_PAUSE, _SHORT_PAUSE = 1.0, 0.05

#: Seconds for which nodes keep a wait queue; each try begins them anew.
_KEEP = 3600.0


class Wait:
    """
    A call that waits for its keys, and is woken while its policy pauses.

    Its first try asks for the keys as any call does. When they are held it begins to listen, and
    its tries name it from then on: a release that comes after a refusal wakes it. Tries that a
    wake-up brings do not count for the policy.

    Attributes:
        budget: the request's; it asks once for each try whether no retry can help.
        woken_tries: how many tries wake-ups have brought beside those of the policy.
    """

    def __init__(self, transport: Transport, request: AcquireRequest, first: Attempt) -> None:
        budget = request.budget
        self.budget = replace(budget, give_up_on=budget.give_up_on and self._gives_up)
        self.woken_tries = 0
        self._transport = transport
        self._params = request.params
        self._latest = first
        self._found: Attempt | None = None
        # One of its own is kept for as long as the call waits.
        own = Waiter(os.urandom(8).hex(), transport.wall_us() // 1000, keep_ms=0)
        self._waiter = request.waiter or own
        self._until = transport.now() + budget.wait
        self._may_listen = budget.wait >= LISTENS_FROM
        self._has_own_policy = budget.policy is not DEFAULT_WAIT
        self._give_up_on = budget.give_up_on
        self._pause = _LISTENING_PAUSE if budget.give_up_on is None else _SHORT_PAUSE
        self._judged: tuple[Attempt, bool] | None = None
        self._listener: Listener | None = None

    def ask(self) -> Attempt:
        """Try once more."""
        self._latest = attempt_once(self._transport, self._next_params())
        return self._latest

    def close(self) -> None:
        """Listen no more. Idempotent."""
        if self._listener is not None:
            self._listener.close()

    def _next_params(self) -> AcquireParams:
        if self._listener is None:
            first = self._params.waiter
            if first is None or not first.name:
                return self._params
            return replace(self._params, waiter=replace(first, has_waited=True))
        left = min(_KEEP, max(0.0, self._until - self._transport.now()))
        keep_ms = self._waiter.keep_ms or milliseconds(left)
        waiter = replace(self._waiter, keep_ms=keep_ms, has_waited=True)
        return replace(self._params, waiter=waiter)

    def _begins_to_listen(self) -> bool:
        if self._listener is not None or not self._may_listen or not self._latest.is_refused:
            return False
        # A call that lets another go first for a moment tries again before it could listen.
        return not 0 < self._latest.turn_in < LISTENS_FROM

    def _until_next(self, seconds: float) -> float:
        """Return until when to sleep where the policy asks for a pause of so many seconds."""
        now = self._transport.now()
        # No release makes that earlier. But others that wait may not come.
        if turn := self._latest.turn_in:
            return now + max(0.0, min(turn, self._pause, self._until - now))
        listens = self._listener is not None and self._listener.is_live
        if listens and not self._has_own_policy and self._latest.is_refused:
            seconds = max(seconds, min(self._pause, self._until - now))
        return now + seconds

    def _gives_up(self, attempt: Attempt) -> bool:
        if self._judged is None or self._judged[0] is not attempt:
            self._judged = attempt, self._give_up_on is not None and self._give_up_on(attempt)
        return self._judged[1]

    def _note(self, attempt: Attempt) -> bool:
        """Note a try that a wake-up brought; return whether the policy has to know it."""
        if attempt.is_refused and not self._gives_up(attempt):
            self.woken_tries += 1
            return False
        self._found = attempt
        return True


class ThreadWait(Wait):
    """
    A call that waits in its thread or greenlet.

    Args:
        transport: to the nodes.
        request: what it asks for.
        first: its first try.
        check_open: raises if the client is closed.
    """

    def __init__(
        self,
        transport: Transport,
        request: AcquireRequest,
        first: Attempt,
        check_open: Callable[[], None],
    ) -> None:
        super().__init__(transport, request, first)
        self._check_open = check_open
        self._call: WaitingCall | None = None

    def attempt(self) -> Attempt:
        """Return what a wake-up has brought, or else try."""
        found, self._found = self._found, None
        if found is not None:
            return found
        self._check_open()
        return self.ask()

    def sleep(self, seconds: float) -> None:
        """Pause for so many seconds, unless a try that a wake-up brings ends the call's wait."""
        if self._begins_to_listen():
            wake_ups, keys = self._transport.wake_ups, self._params.node_keys
            self._listener = self._call = WaitingCall(wake_ups, keys, self._waiter.name)
            if self._is_over():
                return
        until = self._until_next(seconds)
        if self._call is None:
            self._transport.sleep(max(0.0, until - self._transport.now()))
            return
        while (left := until - self._transport.now()) > 0:
            if self._transport.wait(self._call, left) and self._is_over():
                return

    def _is_over(self) -> bool:
        self._check_open()
        return self._note(self.ask())


class CoroutineWait(Wait):
    """
    A call that waits in its event loop.

    Args:
        transport: to the nodes.
        request: what it asks for.
        first: its first try.
        run: runs a try elsewhere.
    """

    def __init__(
        self,
        transport: Transport,
        request: AcquireRequest,
        first: Attempt,
        run: Callable[[Callable[[], Attempt]], Awaitable[Attempt]],
    ) -> None:
        super().__init__(transport, request, first)
        self._run = run
        self._woken = asyncio.Event()

    async def attempt(self) -> Attempt:
        """Return what a wake-up has brought, or else try."""
        found, self._found = self._found, None
        return await self._run(self.ask) if found is None else found

    async def sleep(self, seconds: float) -> None:
        """Pause for so many seconds, unless a try that a wake-up brings ends the call's wait."""
        if self._begins_to_listen():
            self._listener = self._listen()
            if self._note(await self._run(self.ask)):
                return
        until = self._until_next(seconds)
        if self._listener is None:
            await asyncio.sleep(max(0.0, until - self._transport.now()))
            return
        while (left := until - self._transport.now()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), left)
                self._woken.clear()
                if self._note(await self._run(self.ask)):
                    return

    def _listen(self) -> Listener:
        loop, wake = asyncio.get_running_loop(), self._woken.set

        def on_live() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(wake)

        def on_wake(name: str, channel: str) -> None:
            if name == self._waiter.name:
                on_live()

        channels = map(wake_channel, self._params.node_keys)
        return Listener(self._transport.wake_ups, channels, on_wake, on_live)
