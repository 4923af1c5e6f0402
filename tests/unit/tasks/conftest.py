"""What the tests of tasks share."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from celery_redlock.core import client_of
from celery_redlock.tasks.config.client import client_for
from celery_redlock.transport.memory import VirtualTime
from tests.support.tasks import Bench
from tests.support.unique import MODES


@pytest.fixture
def bench() -> Iterator[Bench]:
    """An app with one lock node of its own, whose messages can be run and looked at."""
    bench = Bench()
    yield bench
    bench.close()


@pytest.fixture
def leaping_bench() -> Iterator[Bench]:
    """A bench on whose clock every wait for a lock takes its time, and none of the test's."""
    bench = Bench(time=VirtualTime(time.time()))
    yield bench
    bench.close()


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """Each mode in turn that takes a lock when a task is sent."""
    return str(request.param)


@pytest.fixture
def client(bench: Bench) -> Any:
    """The client of the app of `bench`; an attribute that a test sets on it ends with it."""
    return client_of(client_for(bench.app))


@pytest.fixture
def revoked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of messages that workers were told to revoke; none of them hears of it."""
    revoked: list[str] = []
    monkeypatch.setattr(bench.app.control, "revoke", revoked.append)
    return revoked


@pytest.fixture
def no_waiting(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail what waits for its lock in its process."""

    def refuse(seconds: float) -> None:
        raise AssertionError(f"it waits for {seconds} s")

    monkeypatch.setattr(client_for(bench.app).transport, "sleep", refuse)
