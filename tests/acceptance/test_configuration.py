"""Settings that cannot work stop a worker at its start, and passwords stay unseen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from celery_redlock import Lease
from celery_redlock.testing import LocalCluster
from tests.acceptance.conftest import StartWorker
from tests.acceptance.scene import Journal
from tests.support.cases import first_of
from tests.support.waiting import TIMEOUT, wait_until

PASSWORD = "open-sesame"
DECLARED_ONLY = {"include": ["tests.acceptance.apps.misdeclared"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """A task's options and an app's settings that cannot work, and what the message must name."""

    options: dict[str, Any] = field(default_factory=lambda: {"lock_key": True})
    settings: dict[str, Any] = field(default_factory=dict)
    named: str


MISFITS = {
    "unknown option": Misfit(options={"lock_keyy": "x"}, named="lock_keyy"),
    "unknown setting": Misfit(settings={"redlock_tttl": 5}, named="redlock_tttl"),
    "ttl above max_ttl": Misfit(options={"lock_ttl": 90}, named="lock_ttl=90"),
    "ttl too short": Misfit(options={"lock_ttl": 0.01}, named="lock_ttl=0.01"),
    "template naming a missing argument": Misfit(
        options={"lock_key": "account:{acount_id}"}, named="'acount_id'"
    ),
    "malformed URL": Misfit(settings={"redlock_nodes": ["http://127.0.0.1:1"]}, named="http://"),
    "duplicate node": Misfit(
        settings={"redlock_nodes": ["redis://127.0.0.1:1/0"] * 3}, named="127.0.0.1:1"
    ),
}


@pytest.mark.parametrize("misfit", first_of(MISFITS.values()), ids=MISFITS)
def test_a_worker_does_not_start_with_what_cannot_work_and_names_it(
    start_worker: StartWorker, misfit: Misfit
) -> None:
    worker = start_worker(declare=misfit.options, conf={**DECLARED_ONLY, **misfit.settings})

    assert worker.wait_for_exit() != 0
    assert misfit.named in worker.log.splitlines()[-1]
    assert "Traceback" not in worker.log


@pytest.fixture(scope="module")
def guarded_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, requirepass=PASSWORD) as cluster:
        yield cluster


def test_a_worker_does_not_start_with_a_wrong_password_and_does_not_print_it(
    start_worker: StartWorker, guarded_cluster: LocalCluster
) -> None:
    nodes = [url.replace(PASSWORD, "close-sesame") for url in guarded_cluster.urls]

    worker = start_worker(conf={"redlock_nodes": nodes})

    assert worker.wait_for_exit() != 0
    assert "Error: Lock nodes cannot be used: " in worker.log
    assert "sesame" not in worker.log


def test_what_celery_tells_about_a_worker_shows_no_password_of_its_nodes(
    start_worker: StartWorker, guarded_cluster: LocalCluster, key: str, journal: Journal
) -> None:
    worker = start_worker(conf={"redlock_nodes": guarded_cluster.urls}).wait_until_ready()
    journal.open()
    assert worker.send("hold", key).get(timeout=TIMEOUT) == "held"

    inspect = worker.app.control.inspect(destination=[worker.nodename], timeout=TIMEOUT)
    told = [worker.command("report"), inspect.conf(), inspect.report(), inspect.stats()]

    assert all(told)
    assert PASSWORD not in str([*told, worker.log])


def test_a_worker_applies_the_patterns_of_an_app_that_does_not_import_the_package(
    start_worker: StartWorker, key: str, holder: Lease
) -> None:
    plain = {"include": ["tests.acceptance.apps.plain"]}
    worker = start_worker("solo", conf=plain).wait_until_ready()
    result = worker.send("vendor.hold", key)
    wait_until(lambda: result.state == "RETRY")
