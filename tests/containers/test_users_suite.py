"""The components as somebody else's suite uses them: one line, and pytest-celery has lock nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import TIMEOUT

pytestmark = [pytest.mark.containers, pytest.mark.timeout(10 * TIMEOUT)]

SUITE_TIMEOUT = 8 * TIMEOUT

CONFTEST = """
import pytest
import settlements

pytest_plugins = ["celery_redlock.testing.containers.plugin"]


@pytest.fixture
def redlock_node_count():
    return 3


@pytest.fixture
def default_worker_tasks(default_worker_tasks):
    return {*default_worker_tasks, settlements}
"""

SETTLEMENTS = """
from celery import shared_task

from celery_redlock import RedlockTask


@shared_task(base=RedlockTask, bind=True, lock_key="account:{account}")
def settle(self, account):
    return self.request.fencing_token
"""

TEST = """
import redis
from settlements import settle


def test_a_task_locks_with_one_node_killed_and_restarted(celery_setup, celery_redlock_cluster):
    assert len(celery_redlock_cluster) == 3
    first = settle.delay(7).get(timeout=60)
    celery_redlock_cluster[0].kill()
    assert settle.delay(7).get(timeout=60) > first
    celery_redlock_cluster[0].restart()
    assert celery_redlock_cluster[0].state == "missing"


def test_a_setup_is_what_pytest_celery_makes_of_it(celery_setup):
    assert celery_setup.ready(ping=True, control=True)
    assert len(celery_setup) == 3
"""


def test_a_suite_with_one_more_plugin_has_lock_nodes_and_workers_with_this_package(
    tmp_path: Path,
) -> None:
    for name, text in {
        "pytest.ini": "[pytest]",
        "conftest.py": CONFTEST,
        "settlements.py": SETTLEMENTS,
        "test_settlements.py": TEST,
    }.items():
        (tmp_path / name).write_text(text)

    done = subprocess.run(
        # One of pytest-celery's two brokers; the other scenes use RabbitMQ.
        [sys.executable, "-m", "pytest", "-v", "-p", "no:xdist", "-k", "celery_redis_broker"],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SUITE_TIMEOUT,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
