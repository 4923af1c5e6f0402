"""
Beats inside of workers (`celery worker -B`): they hand over when they are stopped.
"""

from __future__ import annotations

import signal
from typing import Any

from celery import signals

__all__ = ["close_on_sigterm"]


def close_on_sigterm(scheduler_class: type) -> None:
    """
    Close a scheduler of this class that runs inside of a worker when SIGTERM ends its process.

    Celery closes it before it raises `SystemExit` in a beat of its own. Inside of a worker it only
    raises, and an exception that strikes in a `__del__` is printed and forgotten: the beat would go
    on, and the worker would wait for its end. The handler that was there is still called.
    """

    def beat_starts(sender: Any, **_: Any) -> None:
        if isinstance(sender.scheduler, scheduler_class):
            before = signal.getsignal(signal.SIGTERM)

            def stop(number: int, frame: Any) -> None:
                sender.sync()
                if callable(before):
                    before(number, frame)
                raise SystemExit

            signal.signal(signal.SIGTERM, stop)

    signals.beat_embedded_init.connect(
        beat_starts, weak=False, dispatch_uid="celery_redlock.beat_embedded_init"
    )
