"""What the tests of runs share."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from celery_redlock.core import Client
from celery_redlock.tasks.run import contention
from tests.support.tasks import Bench


@pytest.fixture
def longest_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put messages back for as long as their delay may last: it is random otherwise."""
    monkeypatch.setattr("celery_redlock.tasks.run.requeue.random.uniform", lambda low, high: high)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Note for how many seconds runs would wait in their process; they do not wait."""
    noted: list[float] = []
    acquire = Client.acquire_for_task

    def note(client: Client, *args: Any, wait: float = 0.0, **options: Any) -> Any:
        noted.append(wait)
        return acquire(client, *args, wait=0.0, **options)

    monkeypatch.setattr(Client, "acquire_for_task", note)
    return noted


@pytest.fixture
def quick_pauses(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the pauses of an eager call pass at once, on its own clock and the node's."""
    now = time.time
    patched = SimpleNamespace(time=lambda: now() + bench.time.passed, sleep=bench.let_pass)
    monkeypatch.setattr(contention, "time", patched)
