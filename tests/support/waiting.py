"""Waiting on conditions: tests never sleep for a while and hope."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState
from tenacity.wait import wait_base

T = TypeVar("T")

# How many times as patient as on a machine of one's own. Every deadline of a wait is a multiple.
PATIENCE = float(
    os.environ.get("REDLOCK_TEST_PATIENCE") or (4 if os.environ.get("CI") == "true" else 1)
)

# Long enough for a busy two-core machine: it is only ever used up by a test that fails.
TIMEOUT = 30.0 * PATIENCE

# Until a released key is free. However patient a run is, it stays below the default TTL of 30 s: a
# key that only expired was not released.
RELEASE_PATIENCE = 15.0


class _WhenWoken(wait_base):
    """After a refusal the next try comes when the test is over, unless a release wakes the call."""

    def __call__(self, retry_state: RetryCallState) -> float:
        assert retry_state.outcome is not None
        return 0.01 if retry_state.outcome.result().is_undecided else 4 * TIMEOUT


WHEN_WOKEN = _WhenWoken()


def wait_until(
    condition: Callable[[], T],
    timeout: float = TIMEOUT,
    *,
    message: str | Callable[[], str] = "",
    interval: float = 0.02,
) -> T:
    """
    Return the first truthy value of `condition`; fail once `timeout` seconds have passed.

    Args:
        condition: called again and again; must be cheap and free of side effects.
        timeout: seconds until the test is failed.
        message: what was waited for, or a callable that tells it when it is too late.
        interval: seconds between two looks.
    """
    deadline = time.monotonic() + timeout
    while True:
        # Read before the look: this process may have stood still since the last one.
        late = time.monotonic() >= deadline
        if value := condition():
            return value
        if late:
            told = message() if callable(message) else message
            raise AssertionError(f"not within {timeout:g} s: {told or condition}")
        time.sleep(interval)
