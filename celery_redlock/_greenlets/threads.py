"""
Native threads of this package, how they call into the application, and what is called at a fork.

Under gevent and eventlet the locks of logging, queues and application code belong to the event loop
(hub) of the greenlets. A native thread that meets such a lock waits in an event loop of its own,
and with eventlet nothing ever wakes it there. So a native thread does not log and calls no
application code: it asks the hub of the greenlets to do that.
"""

from __future__ import annotations

import _thread
import atexit
import os
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

from celery_redlock._greenlets.polling import WakeupPipe
from celery_redlock._greenlets.unpatched import native_thread, unpatched

_P = ParamSpec("_P")
_T = TypeVar("_T")


def start_thread(run: Callable[[], None], name: str = "redlock") -> None:
    """
    Start a daemon thread, or a greenlet where threads are patched.

    Raises:
        RuntimeError: the process can start no more threads, or the interpreter is ending.
    """
    if _threads_are_patched():
        _thread.start_new_thread(run, ())
    else:
        raise_if_finalizing()
        # Unlike `_thread`, it has a name.
        threading.Thread(target=run, daemon=True, name=name).start()


def raise_if_finalizing() -> None:
    """Raise `RuntimeError` while the interpreter ends: Python 3.11 would wait for the thread."""
    if sys.is_finalizing():
        raise RuntimeError("no thread can begin while the interpreter ends")


def start_native_thread(run: Callable[[], None], name: str = "redlock") -> None:
    """Start a daemon thread that the operating system schedules."""
    if _threads_are_patched():
        hub = getattr(native_thread, "hub", None) or current_hub() or next(iter(_hubs), None)
        unpatched("_thread", "start_new_thread")(_run_native, (hub, run))
    else:
        start_thread(partial(_run_native, None, run), name)


def call_in_app(call: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> None:
    """
    Call a function that may take the application's locks, such as logging or a callback.

    A native thread beside greenlets has it called in a new greenlet, as soon as the running one
    yields, at the latest when the process ends. Any other thread calls it at once. While the
    interpreter ends nothing is called: a thread that has ended may own such a lock.
    """
    if sys.is_finalizing():
        return
    hub: Hub | None = getattr(native_thread, "hub", None)
    if hub is None:
        call(*args, **kwargs)
    else:
        hub.spawn(partial(call, *args, **kwargs))


def answer_from_app(call: Callable[[], _T]) -> _T:
    """
    Return what a function of the application returns, or raise its exception.

    A native thread beside greenlets has it called as `call_in_app` does, and waits for its end. Any
    other thread calls it itself.
    """
    hub: Hub | None = getattr(native_thread, "hub", None)
    if hub is None:
        return call()
    ended = unpatched("_thread", "allocate_lock")()
    ended.acquire()
    answers: list[_T] = []  # no future: the lock in it belongs to the event loop
    errors: list[BaseException] = []

    def answer() -> None:
        try:
            answers.append(call())
        except BaseException as exc:
            errors.append(exc)
        ended.release()

    hub.spawn(answer)
    ended.acquire()
    for error in errors:
        raise error
    return answers[0]


class Hub(ABC):
    """An event loop of gevent or eventlet, to which native threads can hand calls."""

    def __init__(self) -> None:
        self._pending: deque[Callable[[], object]] = deque()
        _hubs.add(self)

    @abstractmethod
    def run(self, call: Callable[[], None]) -> None:
        """Run `call` in the hub itself, where it must not wait. From any thread."""

    def spawn(self, call: Callable[[], object]) -> None:
        """Run `call` in a greenlet of its own. From any thread."""
        self._pending.append(call)
        try:
            self.run(partial(start_thread, self._run_next))
        except Exception:
            # The hub is gone, and with it all greenlets that could own a lock.
            self._run_next()

    def run_pending(self) -> None:
        """Run in this thread the calls that no greenlet has begun."""
        while self._pending:
            self._run_next()

    def reset_after_fork(self) -> None:
        """Drop the pending calls in a forked child: they are the parent's."""
        self._pending.clear()

    def _run_next(self) -> None:
        # Taken out only now, so that a call is not lost if the process ends before its greenlet
        # has started.
        try:
            call = self._pending.popleft()
        except IndexError:
            return
        call()


class _GeventHub(Hub):
    def __init__(self, hub: Any) -> None:
        super().__init__()
        self._hub = hub

    def run(self, call: Callable[[], None]) -> None:
        self._hub.loop.run_callback_threadsafe(call)


class _EventletHub(Hub):
    """Eventlet's hub has no thread-safe call, so it listens to a pipe."""

    def __init__(self, hub: Any) -> None:
        super().__init__()
        self._calls: deque[Callable[[], None]] = deque()
        self._wakeup = WakeupPipe()
        hub.add(hub.READ, self._wakeup.fd, self._run_calls, self._closed, self._closed)

    def run(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        self._wakeup.wake()

    def reset_after_fork(self) -> None:
        super().reset_after_fork()
        self._calls.clear()

    def _run_calls(self, _: int) -> None:
        self._wakeup.drain()
        while self._calls:
            self._calls.popleft()()

    def _closed(self, *_: object) -> None:
        """Do nothing: eventlet reports that the pipe was closed."""


def current_hub() -> Hub | None:
    """Return the hub of this thread's greenlets, or None."""
    gevent = sys.modules.get("gevent._hub_local")
    if gevent is not None and (loop := gevent.get_hub_if_exists()) is not None:
        return _hub_of(loop, _GeventHub)
    eventlet = sys.modules.get("eventlet.hubs")
    if eventlet is not None and hasattr(eventlet._threadlocal, "hub"):
        return _hub_of(eventlet.get_hub(), _EventletHub)
    return None


def _hub_of(loop: Any, kind: Callable[[Any], Hub]) -> Hub:
    hub: Hub | None = getattr(loop, "_celery_redlock", None)
    if hub is None:
        hub = loop._celery_redlock = kind(loop)
    return hub


def _threads_are_patched() -> bool:
    start: object = unpatched("_thread", "start_new_thread")
    return start is not _thread.start_new_thread


def _run_native(hub: Hub | None, run: Callable[[], None]) -> None:
    native_thread.is_native = True
    native_thread.hub = hub
    run()


def register_at_fork(**calls: Callable[[], object]) -> None:
    """Call `os.register_at_fork`; do nothing where processes do not fork (Windows)."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**calls)


_hubs: weakref.WeakSet[Hub] = weakref.WeakSet()


def _at_exit() -> None:
    for hub in tuple(_hubs):
        hub.run_pending()


def _after_fork() -> None:
    for hub in tuple(_hubs):
        hub.reset_after_fork()


atexit.register(_at_exit)
register_at_fork(after_in_child=_after_fork)
