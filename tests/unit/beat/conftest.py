"""What the beats' tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.beat.world import MakeWorld, World, worlds


@pytest.fixture
def make_world(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[MakeWorld]:
    """Worlds whose leases are renewed, and whose broker fails, when the test says so."""
    yield from worlds(monkeypatch, caplog)


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """A world with one entry that is due each second, and leases of twelve seconds."""
    return make_world()
