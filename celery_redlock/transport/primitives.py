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
from typing import Any


def original(module: str, name: str) -> Any:
    """Return an attribute of a standard module as it was before any monkey patching."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched(module):
        return monkey.get_original(module, name)
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and patcher.already_patched:
        return getattr(patcher.original(module), name)
    return getattr(importlib.import_module(module), name)


def native_lock() -> Any:
    """
    Return a lock that native threads and greenlets can share for very short sections.

    The same thread may take it again: a signal handler can run inside a section and ask for more.
    """
    return original("_thread", "RLock")()


def close_greenlet_hub() -> None:
    """End the event loop that gevent made for a native thread in which patched code has waited."""
    local = sys.modules.get("gevent._hub_local")
    if local is not None and (hub := local.get_hub_if_exists()) is not None:
        hub.destroy(destroy_loop=True)
