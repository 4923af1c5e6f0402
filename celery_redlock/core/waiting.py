"""
Calls that wait: nodes that refuse one remember it, and wake it when the keys are released.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import replace

from celery_redlock.core.attempt import AcquireParams, Attempt, attempt_once
from celery_redlock.core.options import AcquireRequest
from celery_redlock.core.retry import DEFAULT_WAIT
from celery_redlock.protocol import Phase, Waiter, milliseconds
from celery_redlock.protocol.keys import wake_channel
from celery_redlock.transport import Listener, Transport, WaitingCall

#: Seconds between the tries of a call that a release would wake, unless it has a policy of its own.
_LISTENING_PAUSE = 1.0

#: Seconds for which nodes keep a wait queue; each try begins them anew.
_KEEP = 3600.0


class Wait:
    """
    A call that waits for its keys.

    Its first try asks for the keys as any call does. When they are held it begins to listen, and
    its tries name it from then on: a release that comes after a refusal wakes it.
    """

    def __init__(self, transport: Transport, request: AcquireRequest, first: Attempt) -> None:
        budget = request.budget
        self.transport = transport
        self._waiter = request.waiter
        self.name = os.urandom(8).hex() if self._waiter is None else self._waiter.name
        self._params = request.params
        self._latest = first
        self._since_ms = transport.wall_us() // 1000
        self._until = transport.now() + budget.wait
        self._waits = budget.wait > 0
        self._has_own_policy = budget.policy is not DEFAULT_WAIT
        self._listener: Listener | None = None

    def attempt(self) -> Attempt:
        """Try once more."""
        self._latest = attempt_once(self.transport, self._next_params())
        return self._latest

    def _next_params(self) -> AcquireParams:
        if self._listener is None:
            return self._params
        if self._waiter is not None:
            return replace(self._params, waiter=self._waiter)
        left = self._until - self.transport.now()
        keep = 0 if left <= 0 else milliseconds(min(left, _KEEP))
        return replace(self._params, waiter=Waiter(self.name, self._since_ms, keep))

    def begins_to_listen(self) -> bool:
        """Return whether it is time to listen; the next try then follows at once."""
        listens = self._listener is not None or not self._waits
        return not listens and self._latest.phase is Phase.CONTENDED

    def listen(self, listener: Listener) -> None:
        """Be woken by a listener."""
        self._listener = listener

    def pause(self, seconds: float) -> float:
        """Return how long to sleep where the policy asks for so many seconds."""
        if self._has_own_policy or self._latest.phase is not Phase.CONTENDED:
            return seconds
        if self._listener is None or not self._listener.is_live:
            return seconds
        return max(seconds, min(_LISTENING_PAUSE, self._until - self.transport.now()))

    def close(self) -> None:
        """Listen no more. Idempotent."""
        if self._listener is not None:
            self._listener.close()


class ThreadWait(Wait):
    """A call that waits in its thread or greenlet."""

    _call: WaitingCall | None = None

    def sleep(self, seconds: float) -> None:
        """Wait until it is woken, for so many seconds at most."""
        if self.begins_to_listen():
            self._call = WaitingCall(self.transport.wake_ups, self._params.node_keys, self.name)
            self.listen(self._call)
        elif self._call is None:
            self.transport.sleep(seconds)
        else:
            self.transport.wait(self._call, self.pause(seconds))


class CoroutineWait(Wait):
    """A call that waits in its event loop; its attempts are made elsewhere."""

    _woken: asyncio.Event

    async def sleep(self, seconds: float) -> None:
        """Wait until it is woken, for so many seconds at most."""
        if self.begins_to_listen():
            self._woken = asyncio.Event()
            loop, wake = asyncio.get_running_loop(), self._woken.set

            def on_wake(name: str) -> None:
                if name == self.name:
                    on_live()

            def on_live() -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(wake)

            self.listen(
                Listener(
                    self.transport.wake_ups,
                    map(wake_channel, self._params.node_keys),
                    on_wake,
                    on_live,
                )
            )
        elif self._listener is None:
            await asyncio.sleep(seconds)
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), self.pause(seconds))
            self._woken.clear()
