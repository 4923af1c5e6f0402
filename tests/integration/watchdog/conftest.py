"""Threads that notice when the machine stands still."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.pulse import Pulse


@pytest.fixture
def pulse() -> Iterator[Pulse]:
    with Pulse() as pulse:
        yield pulse
