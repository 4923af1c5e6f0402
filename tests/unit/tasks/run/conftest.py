"""What the tests of runs share."""

from __future__ import annotations

import pytest


@pytest.fixture
def longest_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put messages back for as long as their delay may last: it is random otherwise."""
    monkeypatch.setattr("celery_redlock.tasks.run.requeue.random.uniform", lambda low, high: high)
