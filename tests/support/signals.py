"""Signal handlers of the test process."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture
def kept_handlers() -> Iterator[None]:
    """Restore what handles SIGTERM and SIGINT."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
