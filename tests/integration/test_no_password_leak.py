"""Celery's own report and inspect commands, run as people run them, show no node password."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_redlock.testing import LocalCluster
from tests.support.cases import first_of
from tests.support.waiting import TIMEOUT, wait_until

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "hunter2"
WORKER = "bank@leak"
# Port 1 refuses, so the worker also prints what it says about nodes that do not answer.
NODES = [
    f"redis://:{PASSWORD}@127.0.0.1:1/0",
    f"redis://ana:{PASSWORD}@127.0.0.2:1/0",
    f"redis://ana:{PASSWORD}@127.0.0.3:1/0",
]
GIVEN = {
    "list": f"app.conf.redlock_nodes = {NODES!r}",
    "text": f"app.conf.redlock_nodes = {','.join(NODES)!r}",
    "namespace": (
        f"app.config_from_object({{'CELERY_REDLOCK_NODES': {NODES!r}, "
        "'CELERY_REDLOCK_NODE_TIMEOUT': 0.25}, namespace='CELERY')"
    ),
}
APP = """
from celery import Celery
from celery_redlock import RedlockTask

app = Celery("bank", broker={broker!r})
{given}
app.conf.redlock_node_timeout = 0.25

@app.task(base=RedlockTask, lock_key="account:{{account_id}}")
def settle(account_id):
    pass
"""


class Bank:
    """An app in a directory of its own, and Celery's command line on it."""

    def __init__(self, directory: Path, given: str, broker: str) -> None:
        (directory / "bank.py").write_text(APP.format(given=given, broker=broker))
        self._directory = directory
        self._log = directory / "worker.log"

    def start(self, *command: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "bank", *command],
            cwd=self._directory,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
            **options,
        )

    def run(self, *command: str) -> str:
        process = self.start(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            output, _ = process.communicate(timeout=TIMEOUT)
        finally:
            process.kill()
        assert process.returncode == 0, output
        return output

    def start_worker(self) -> subprocess.Popen[str]:
        with self._log.open("w") as log:
            return self.start(
                *("worker", "--pool=solo", "--loglevel=DEBUG", f"--hostname={WORKER}"),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> str:
        return self._log.read_text()


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with LocalCluster(1, armed=False) as cluster:
        yield cluster.urls[0]


@pytest.mark.parametrize("given", first_of(GIVEN.values()), ids=GIVEN.keys())
def test_celery_report_shows_no_password(tmp_path: Path, given: str) -> None:
    report = Bank(tmp_path, given, "memory://").run("report")
    assert PASSWORD not in report
    assert re.search(r"REDLOCK_NODES: '\*+'", report, re.IGNORECASE)
    assert "redlock_node_timeout: 0.25" in report.lower()


@pytest.mark.parametrize(
    "given", first_of([GIVEN["list"], GIVEN["namespace"]]), ids=["list", "namespace"]
)
def test_inspect_and_the_workers_own_log_show_no_password(
    tmp_path: Path, given: str, broker: str
) -> None:
    bank = Bank(tmp_path, given, broker)
    worker = bank.start_worker()
    try:
        wait_until(
            lambda: worker.poll() is not None or " ready." in bank.log, message=lambda: bank.log
        )
        for command in ("conf", "report"):
            # With a destination the command ends at the answer, not at the timeout.
            answer = bank.run("inspect", f"--destination={WORKER}", "--timeout=20", command)
            assert "redlock_node" in answer.lower()
            assert PASSWORD not in answer
    finally:
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(TIMEOUT)
        finally:
            worker.kill()
    assert "127.0.0.2" in bank.log
    assert PASSWORD not in bank.log
