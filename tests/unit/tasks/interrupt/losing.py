"""Losing a lease as the watchdog does, in a body that runs in this thread or in another."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any


def lose(lease: Any) -> None:
    """Lose a lease as the watchdog does: from another thread, which does not wait."""
    # One call into the interpreter: `Thread.start` is Python code of the body, which the loss may
    # strike half done.
    _thread.start_new_thread(lease.mark_lost, ())


def in_a_thread(call: Callable[[], Any]) -> Any:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    thread.join()
    return answers[0]


def in_this_thread(call: Callable[[], Any]) -> Any:
    return call()
