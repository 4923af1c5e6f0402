"""
The ways into a running body: by signal, by asynchronous exception, by greenlet switch.

An interrupter is chosen where the body runs. `interrupt` is then called from elsewhere, again and
again, until the body has finished; each call throws at most once, and only where the body may be
struck.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Protocol

from celery_redlock._greenlets.threads import Hub, current_hub, register_at_fork
from celery_redlock._greenlets.unpatched import unpatched
from celery_redlock.tasks.interrupt.body import Body, watch_unraisable


class Interrupter(Protocol):
    """One way into one body."""

    def interrupt(self, body: Body) -> None:
        """Throw what is due, if it may strike now. Called from another thread or greenlet."""

    def recall(self) -> None:
        """Take back what was thrown and has not landed; the body continues. Called as `cancel`."""

    def cancel(self) -> None:
        """Recall what was thrown, and throw nothing more. Called from the body's own thread."""


def choose_interrupter(body: Body, signum: int) -> Interrupter:
    """Choose the way into a body that is about to run where this is called."""
    watch_unraisable()
    if (hub := current_hub()) is not None:
        return GreenletInterrupter(hub)
    # Where threads receive no signals (Windows), the main thread is treated like the others.
    main = threading.current_thread() is threading.main_thread()
    if main and hasattr(signal, "pthread_kill"):
        return SignalInterrupter(body, signum)
    return ThreadInterrupter()


_frames_lock = unpatched("_thread", "RLock")()
# A child forked while the lock is held would collect no garbage, and wait for the lock without end.
register_at_fork(
    before=_frames_lock.acquire,
    after_in_parent=_frames_lock.release,
    after_in_child=_frames_lock.release,
)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """
    Keep the garbage collector from running while the frames of threads are looked at.

    The interpreter then holds an internal lock, which a collection that begins there may need: to
    drop a `threading.local`, or in another thread that a finalizer lets run. The process would be
    blocked without end (CPython issue 106883).
    """
    with _frames_lock:
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()


_main_bodies: list[Body] = []
"""Bodies that run in the main thread, outermost first; touched by the main thread only."""


class SignalInterrupter:
    """
    Interrupts the main thread, as in the prefork and solo pools.

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

    def interrupt(self, body: Body) -> None:
        # Checked here as well, to avoid interrupting Celery's system calls with signals that the
        # handler would ignore.
        with _no_collection():
            frame = sys._current_frames().get(self._thread)
        if body.may_be_interrupted(frame):
            signal.pthread_kill(self._thread, self._signum)

    def recall(self) -> None:
        """Do nothing: the handler raises the exception, so it lands at once."""

    def cancel(self) -> None:
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
                if body.due is not None and body.may_be_interrupted(frame):
                    body.raised = True
                    raise body.due
            # A signal of ours that comes too late is dropped; any other was meant for the earlier
            # handler.
            if callable(earlier) and not any(body.due for body in _main_bodies):
                earlier(number, frame)

        strike.celery_redlock = True  # type: ignore[attr-defined]  # marks it as installed
        signal.signal(signum, strike)
    _installed[signum] = os.getpid()


_throw_at = ctypes.pythonapi.PyThreadState_SetAsyncExc


class ThreadInterrupter:
    """Interrupts any other thread, as in the threads pool, at its next bytecode."""

    __slots__ = ("_id", "_thread")

    def __init__(self) -> None:
        self._id = threading.get_ident()
        self._thread = ctypes.c_ulong(self._id)

    def interrupt(self, body: Body) -> None:
        with body.lock, _no_collection():
            frame = sys._current_frames().get(self._id)
            if frame is None or not body.may_be_interrupted(frame):
                return
            place, thread, loss = frame.f_lasti, self._thread, ctypes.py_object(body.due)
            body.raised = True
            # The interpreter changes threads after a call and where a loop begins anew. Neither
            # comes between this look and the throw, so the thread is still where it may be struck.
            for frames in iter(sys._current_frames, {}):
                if frames[self._id] is frame and frame.f_lasti == place:
                    _throw_at(thread, loss)
                else:
                    body.raised = False
                break

    def recall(self) -> None:
        _throw_at(self._thread, None)

    cancel = recall


class GreenletInterrupter:
    """Interrupts a greenlet: its hub throws, hence while the greenlet waits at a switch."""

    __slots__ = ("_greenlet", "_hub")

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._greenlet = sys.modules["greenlet"].getcurrent()

    def interrupt(self, body: Body) -> None:
        self._hub.run(lambda: self._throw(body))

    def _throw(self, body: Body) -> None:
        if body.may_be_interrupted(self._greenlet.gr_frame):
            body.raised = True
            self._greenlet.throw(body.due)

    def recall(self) -> None:
        """Do nothing: what is thrown lands at once."""

    cancel = recall
