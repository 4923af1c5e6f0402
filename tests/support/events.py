"""What signals about tasks bring, and how often each was sent in this process."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery_redlock.tasks.events import SIGNALS

_counts: Counter[str] = Counter()
_lock = threading.Lock()


def counters() -> dict[str, int]:
    """Return the number of signals of each kind since this module was imported."""
    return {kind.value: _counts[kind.value] for kind in SIGNALS}


@contextmanager
def listening(*signals: Any) -> Iterator[list[dict[str, Any]]]:
    """Note the facts that come with these signals meanwhile."""
    heard: list[dict[str, Any]] = []

    def hear(**facts: Any) -> None:
        heard.append(facts)

    for signal in signals:
        signal.connect(hear, weak=False)
    try:
        yield heard
    finally:
        for signal in signals:
            signal.disconnect(hear)


def _count(signal: Any, **_: Any) -> None:
    with _lock:
        _counts[signal.name] += 1


for _signal in SIGNALS.values():
    _signal.connect(_count, weak=False)
