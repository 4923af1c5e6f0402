"""Beats for a worker that knows the tasks they send."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.beat.beats import OVERLAP, REDLOCK, TASKS, Beat
from tests.acceptance.program import stop_all
from tests.acceptance.worker import Worker

StartBeat = Callable[..., Beat]


@pytest.fixture(scope="session")
def conf(conf: dict[str, Any]) -> dict[str, Any]:
    """The settings of all workers here, with the modules that they load."""
    return {**conf, "include": [TASKS, OVERLAP]}


@pytest.fixture
def start_beat(
    request: pytest.FixtureRequest,
    key: str,
    urls: dict[str, str],
    conf: dict[str, Any],
    logs: Path,
) -> Iterator[StartBeat]:
    """Start a beat that sends to a worker's queue; settings given win over the shared ones."""
    beats: list[Beat] = []

    def start(worker: Worker, schedule: dict[str, dict[str, Any]], **more: Any) -> Beat:
        settings = {**conf, "task_default_queue": worker.name, **more.pop("conf", {})}
        if more.get("scheduler") == REDLOCK:
            # A leader that another test has killed holds its lock until the TTL is over.
            settings.setdefault("redlock_beat_key", f"beat:{key}")
        more = {"key": key, "urls": urls, "logs": logs, **more}
        beat = Beat(schedule=schedule, conf=settings, **more)
        beats.append(beat)
        return beat.show_if_it_fails(request.node)

    yield start
    stop_all(beats)
