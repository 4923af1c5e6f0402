"""What the beats' tests share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from celery_redlock.beat import publishing
from celery_redlock.core import lease, redlock, releasing
from tests.unit.beat.world import WATCHDOGS, MakeWorld, World


@pytest.fixture
def make_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeWorld]:
    """Worlds whose leases are renewed, and whose broker fails, when the test says so."""
    worlds: list[World] = []

    def watchdog() -> Any:
        return WATCHDOGS[-1]

    for module in (redlock, lease, releasing):
        monkeypatch.setattr(module, "process_watchdog", watchdog)
    connect = publishing.limited_connection

    def limited_connection(app: Any, timeout: float) -> Any:
        connection = connect(app, timeout)
        ensure = connection.ensure_connection

        def ensure_connection(*args: Any, **kwargs: Any) -> Any:
            if any(world.broker_is_down for world in worlds):
                raise ConnectionRefusedError("refused")
            return ensure(*args, **kwargs)

        connection.ensure_connection = ensure_connection
        return connection

    monkeypatch.setattr(publishing, "limited_connection", limited_connection)

    def make(**options: Any) -> World:
        world = World(**options)
        worlds.append(world)
        return world

    yield make
    for world in worlds:
        world.end()


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """A world with one entry that is due each second, and leases of twelve seconds."""
    return make_world()
