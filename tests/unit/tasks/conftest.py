"""What the tests of tasks share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kombu.exceptions import OperationalError

from tests.support.tasks import Bench
from tests.support.unique import MODES


@pytest.fixture
def bench() -> Iterator[Bench]:
    """An app with one lock node of its own, whose messages can be run and looked at."""
    bench = Bench()
    yield bench
    bench.close()


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """Each mode in turn that takes a lock when a task is sent."""
    return str(request.param)


@pytest.fixture
def break_broker(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Once this is called, the broker refuses what the app of `bench` sends."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OperationalError("broker down")

    return lambda: monkeypatch.setattr(bench.app.amqp, "send_task_message", refuse)
