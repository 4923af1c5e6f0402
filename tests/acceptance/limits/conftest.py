"""Workers and a publisher that know the tasks with a limit or a rate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_redlock.tasks.config.client import close_clients
from tests.acceptance.apps.limits import declare
from tests.acceptance.worker import Worker


@pytest.fixture(scope="session")
def conf(conf: dict[str, Any]) -> dict[str, Any]:
    return {
        **conf,
        "redlock_node_timeout": 1.0,  # nodes are as busy as the machine
        "include": ["tests.acceptance.apps.plain", "tests.acceptance.apps.limits_stage"],
    }


@pytest.fixture
def app(worker: Worker, urls: dict[str, str], conf: dict[str, Any]) -> Iterator[Celery]:
    """An app that publishes to the worker's queue as a program that has loaded its tasks."""
    app = Celery("publisher", broker=urls["broker"], backend=urls["backend"], set_as_current=False)
    app.conf.update(
        {name: value for name, value in conf.items() if name != "include"},
        task_default_queue=worker.name,
        task_ignore_result=True,
    )
    declare(app)
    app.finalize()
    yield app
    close_clients()
    app.close()
