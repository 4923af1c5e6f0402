"""
The ways into a running body: by signal, by asynchronous exception, by greenlet switch.

A reach is chosen where the body runs. `attempt` is then called from elsewhere, again and again,
until the body has been left; each call throws at most once, and only while the body is open.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from types import FrameType
from typing import Protocol

from celery_redlock.tasks.holding.body import Body, watch_unraisable
from celery_redlock.transport.native import Hub, hub_here

__all__ = ["Reach", "reach_here"]


class Reach(Protocol):
    """One way into one body."""

    def attempt(self, body: Body) -> None:
        """Throw what is due, if the body is open. Called from another thread or greenlet."""

    def forget(self) -> None:
        """Take back what was thrown and has not landed. Called from the body's own thread."""


def reach_here(body: Body, signum: int) -> Reach:
    """Choose the way into a body that is about to run where this is called."""
    watch_unraisable()
    if (hub := hub_here()) is not None:
        return GreenletReach(hub)
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


class GreenletReach:
    """A greenlet: thrown by its hub, hence while it waits at a switch."""

    __slots__ = ("_greenlet", "_hub")

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._greenlet = sys.modules["greenlet"].getcurrent()

    def attempt(self, body: Body) -> None:
        self._hub.run(lambda: self._throw(body))

    def _throw(self, body: Body) -> None:
        if body.is_open:
            body.raised = True
            self._greenlet.throw(body.due)

    def forget(self) -> None:
        """Nothing is ever thrown without landing at once."""
