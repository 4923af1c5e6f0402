"""How often each signal about tasks was sent in this process."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from celery_redlock.tasks.events import SIGNALS

_counts: Counter[str] = Counter()
_lock = threading.Lock()


def counters() -> dict[str, int]:
    """Return the number of signals of each kind since this module was imported."""
    return {kind.value: _counts[kind.value] for kind in SIGNALS}


def _count(signal: Any, **_: Any) -> None:
    with _lock:
        _counts[signal.name] += 1


for _signal in SIGNALS.values():
    _signal.connect(_count, weak=False)
