"""
Locks, polls and pipes, in their cooperative and in their native form.

Under gevent and eventlet the standard modules are patched so that waiting lets other greenlets run.
That is right for a caller inside a greenlet, and wrong for the watchdog, which must run although a
greenlet does not yield. So callers use the modules as they find them, and the watchdog asks for
the originals.
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


class NativeLock:
    """
    A lock that native threads and greenlets can share for very short sections, by `with`.

    The same thread may take it again: a signal handler can run inside a section and ask for more.

    When the interpreter ends, every other thread is ended wherever it stands, perhaps in such a
    section. The one that is left is alone and takes no lock: it would wait for ever.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = unpatched("_thread", "RLock")()

    # `with` reads both before it calls either, and calls C code, as with the lock itself: an
    # exception from a signal cannot strike when the lock is taken but the section has not begun.
    @property
    def __enter__(self) -> Callable[[], object]:
        return _alone if is_finalizing() else self._lock.__enter__

    @property
    def __exit__(self) -> Callable[..., object]:
        return _alone if is_finalizing() else self._lock.__exit__


def _alone(*_: object) -> None:
    """Stand for taking and for giving up a lock that nobody else can want."""


def native_lock() -> Any:
    """Return a `NativeLock`."""
    return NativeLock()


def close_greenlet_hub() -> None:
    """End the event loop that gevent made for a native thread in which patched code has waited."""
    local = sys.modules.get("gevent._hub_local")
    if local is not None and (hub := local.get_hub_if_exists()) is not None:
        hub.destroy(destroy_loop=True)
