"""
Functions of the standard library as they were before monkey patching, and what is made of them.

Under gevent and eventlet the standard modules are patched so that waiting lets other greenlets run.
That is right in a greenlet, and wrong in the watchdog's thread, which must run although no greenlet
yields.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from sys import is_finalizing
from typing import Any


def unpatched(module: str, name: str) -> Any:
    """Return an attribute of a standard module as it was before any monkey patching."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched(module):
        return monkey.get_original(module, name)
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and patcher.already_patched:
        return getattr(patcher.original(module), name)
    return getattr(sys.modules.get(module) or importlib.import_module(module), name)


#: Set in threads that `start_native_thread` has started: `is_native`, and beside greenlets `hub`.
native_thread = unpatched("_thread", "_local")()


def on_native_thread() -> bool:
    """
    Return whether the caller runs in a thread of `start_native_thread`.

    Such a thread may run beside greenlets, whose event loop it must not touch.
    """
    return getattr(native_thread, "is_native", False)


class NativeLock:
    """
    A lock that native threads and greenlets can share for very short sections, by `with`.

    It is reentrant, because a signal handler can run inside a section and begin another.

    When the interpreter ends, it ends every other thread, perhaps inside such a section. The
    remaining thread takes no lock: it would wait without end.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = unpatched("_thread", "RLock")()

    # `with` reads both before it calls either, and calls C code, as for the lock itself: a signal's
    # exception cannot be raised between taking the lock and entering the section.
    @property
    def __enter__(self) -> Callable[[], object]:
        return _alone if is_finalizing() else self._lock.__enter__

    @property
    def __exit__(self) -> Callable[..., object]:
        return _alone if is_finalizing() else self._lock.__exit__


def _alone(*_: object) -> None:
    """Stand for taking and releasing a lock when no other thread is left."""


def native_lock() -> Any:
    """Return a `NativeLock`."""
    return NativeLock()


def close_greenlet_hub() -> None:
    """
    End the event loop that gevent made for a native thread because patched code waited in it.

    Not for a thread that may end while the interpreter does: the process would crash.
    """
    local = sys.modules.get("gevent._hub_local")
    if local is not None and (hub := local.get_hub_if_exists()) is not None:
        hub.destroy(destroy_loop=True)
