"""`redlock_tasks` and the worker's start."""

from __future__ import annotations

import socket

import pytest

from tests.support.tasks import Bench
from tests.unit.tasks.jobs import start_worker


def test_a_node_that_is_down_does_not_keep_a_worker_from_starting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        bench = Bench(redlock_nodes=[f"redis://127.0.0.1:{unused.getsockname()[1]}/0"])
        bench.task(lambda: None, lock_key="k")
        start_worker(bench)
    assert "does not answer" in caplog.text
