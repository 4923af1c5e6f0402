"""The fixtures of these tests, where pytest-celery is installed; elsewhere there are no tests."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

if find_spec("pytest_celery") is None:
    collect_ignore_glob = ["*.py"]
else:
    from tests.containers.fixtures import *  # noqa: F403  # pytest finds fixtures so


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Show what the containers have logged where a test has failed."""
    report = yield
    if report.failed:
        if stage := item.funcargs.get("stage"):
            for worker in stage.setup.worker_cluster:
                report.sections.append((f"log of {worker.hostname()}", worker.logs()))
        if started := item.funcargs.get("started"):
            report.sections.extend(started.logs())
    return report
