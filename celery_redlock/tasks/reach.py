"""
The ways into a running body: by signal, by asynchronous exception, by greenlet switch.

A reach is chosen where the body runs. `attempt` is then called by a native thread, again and again,
until the body has been left; each call throws at most once, and only while the body is open.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from celery_redlock.tasks.body import Body, watch_unraisable
from celery_redlock.transport.primitives import original

__all__ = ["Reach", "reach_here"]


class Reach(Protocol):
    """One way into one body."""

    def attempt(self, body: Body) -> None:
        """Throw what is due, if the body is open. Called from another, native thread."""

    def forget(self) -> None:
        """Take back what was thrown and has not landed. Called from the body's own thread."""


def reach_here(body: Body, signum: int) -> Reach:
    """Choose the way into a body that is about to run where this is called."""
    watch_unraisable()
    hub_here = sys.modules.get("gevent._hub_local")
    if hub_here is not None and (hub := hub_here.get_hub_if_exists()) is not None:
        return GeventReach(hub)
    hubs = sys.modules.get("eventlet.hubs")
    if hubs is not None and hasattr(hubs._threadlocal, "hub"):
        return EventletReach(hubs.get_hub())
    if threading.current_thread() is threading.main_thread():
        return SignalReach(body, signum)
    return ThreadReach()


_main_bodies: list[Body] = []
"""Bodies that run in the main thread, outermost first; touched by the main thread only."""


class SignalReach:
    """
    The main thread, as in the prefork and solo pools.

    The signal also ends a wait in `time.sleep` or on a socket. It has to be repeated: one that
    arrives just before such a wait begins does not end it.
    """

    __slots__ = ("_body", "_signum", "_thread")

    def __init__(self, body: Body, signum: int) -> None:
        _install_handler(signum)
        self._body = body
        self._signum = signum
        self._thread = threading.get_ident()
        _main_bodies.append(body)

    def attempt(self, body: Body) -> None:
        if body.is_open:
            signal.pthread_kill(self._thread, self._signum)

    def forget(self) -> None:
        with contextlib.suppress(ValueError):
            _main_bodies.remove(self._body)


_installed: dict[int, int] = {}
"""Signal number to the process that installed our handler for it."""


def _install_handler(signum: int) -> None:
    # A pool resets the handlers of some signals in its children.
    if _installed.get(signum) == os.getpid():
        return
    earlier = signal.getsignal(signum)
    if not getattr(earlier, "celery_redlock", False):

        def strike(number: int, frame: FrameType | None) -> None:
            for body in tuple(_main_bodies):
                if body.is_open and body.due is not None:
                    body.raised = True
                    raise body.due
            # A signal of ours that comes too late is nobody's; any other was meant for the
            # handler that was here before.
            if callable(earlier) and not any(body.due for body in _main_bodies):
                earlier(number, frame)

        strike.celery_redlock = True  # type: ignore[attr-defined]  # marks it as installed
        signal.signal(signum, strike)
    _installed[signum] = os.getpid()


class ThreadReach:
    """Any other thread, as in the threads pool: raised at its next bytecode."""

    __slots__ = ("_thread",)

    def __init__(self) -> None:
        self._thread = ctypes.c_ulong(threading.get_ident())

    def attempt(self, body: Body) -> None:
        with body.guard:
            if body.is_open:
                body.raised = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, ctypes.py_object(body.due))

    def forget(self) -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, None)


class _GreenletReach:
    """A greenlet: thrown by its hub, hence while it waits at a switch."""

    __slots__ = ("_greenlet",)

    def __init__(self) -> None:
        self._greenlet = sys.modules["greenlet"].getcurrent()

    def _throw(self, body: Body) -> None:
        if body.is_open:
            body.raised = True
            self._greenlet.throw(body.due)

    def forget(self) -> None:
        """Nothing is ever thrown without landing at once."""


class GeventReach(_GreenletReach):
    """A greenlet of gevent."""

    __slots__ = ("_hub",)

    def __init__(self, hub: Any) -> None:
        super().__init__()
        self._hub = hub

    def attempt(self, body: Body) -> None:
        self._hub.loop.run_callback_threadsafe(self._throw, body)


class EventletReach(_GreenletReach):
    """A greenlet of eventlet."""

    __slots__ = ("_bell",)

    def __init__(self, hub: Any) -> None:
        super().__init__()
        self._bell = _Bell.of(hub)

    def attempt(self, body: Body) -> None:
        self._bell.ring(lambda: self._throw(body))


class _Bell:
    """Lets a native thread call a function in an eventlet hub, which has no such call itself."""

    def __init__(self, hub: Any) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._read = original("os", "read")
        self._write = original("os", "write")
        reader, self._writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(self._writer, False)
        hub.add(hub.READ, reader, self._answer, self._closed, self._closed)

    @classmethod
    def of(cls, hub: Any) -> _Bell:
        bell = getattr(hub, "_celery_redlock_bell", None)
        if bell is None:
            bell = hub._celery_redlock_bell = cls(hub)
        return bell

    def ring(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        with contextlib.suppress(BlockingIOError):  # full: the hub is going to wake anyway
            self._write(self._writer, b"\0")

    def _answer(self, reader: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._read(reader, 4096)
        while self._calls:
            self._calls.popleft()()

    def _closed(self, *_: object) -> None:
        """Eventlet tells that the pipe was closed under it: there is nobody left to call."""
