"""
Daemon threads that the interpreter's end finds at something; for programs that tests run.

They refer to nothing of the program, so that its generators are closed while the package still
works.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from celery_redlock import Redlock


def ended_in(lock: Any) -> None:
    """Let a thread take a lock and keep it to its end."""
    inside = threading.Event()

    def stay() -> None:
        with lock:
            inside.set()
            time.sleep(3600)

    threading.Thread(target=stay, daemon=True).start()
    inside.wait()


def ended_in_use(client: Redlock, key: str) -> None:
    """Let a thread take a lock of the nodes again and again."""

    def use() -> None:
        while True:
            with client.lock(key, ttl=5.0, wait=5.0):
                pass

    threading.Thread(target=use, daemon=True).start()
