"""`redlock_tasks` and the worker's start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Task
from celery.app.trace import build_tracer

from celery_redlock import RedlockTask
from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.adoption import idle_patterns, lock_matching_tasks
from tests.support.tasks import Bench
from tests.unit.tasks.jobs import start_worker


def vendor_task(bench: Bench, body: Any = None, **options: Any) -> Any:
    options = {"base": Task, "name": "vendor.report", **options}
    return bench.task(body or (lambda month: bench.is_held(f"report:{month}")), **options)


PATTERN = {"vendor.*": {"lock_key": "report:{month}"}}


def test_a_task_that_no_pattern_names_stays_as_it_was() -> None:
    bench = Bench(redlock_tasks=PATTERN)
    bench.task(lambda: None, base=Task, name="other")
    bench.app.finalize()
    assert not isinstance(bench.app.tasks["other"], RedlockTask)


def test_a_star_does_not_mean_celerys_own_tasks() -> None:
    bench = Bench(redlock_tasks={"*": {"lock_key": True}})
    bench.app.finalize()
    assert not isinstance(bench.app.tasks["celery.chord_unlock"], RedlockTask)


def test_a_pattern_that_names_celerys_own_tasks_means_them() -> None:
    bench = Bench(redlock_tasks={"celery.backend_cleanup": {"lock_key": True}})
    bench.app.finalize()
    assert isinstance(bench.app.tasks["celery.backend_cleanup"], RedlockTask)


def test_a_tracer_that_was_built_before_is_built_again() -> None:
    bench = Bench()
    vendor_task(bench)
    task = bench.app.tasks["vendor.report"]
    task.__trace__ = build_tracer(task.name, task, app=bench.app)
    bench.app.conf.redlock_tasks = PATTERN
    lock_matching_tasks(bench.app)
    request = bench.send(task, 5)
    task.__trace__(request["id"], request["args"], request["kwargs"], request)
    assert bench.app.AsyncResult(request["id"]).result is True


def test_adopting_a_task_twice_changes_nothing() -> None:
    bench = Bench(redlock_tasks=PATTERN)
    vendor_task(bench)
    bench.app.finalize()
    adopted = type(bench.app.tasks["vendor.report"])
    lock_matching_tasks(bench.app)
    assert type(bench.app.tasks["vendor.report"]) is adopted


def test_a_pattern_without_a_task_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(redlock_tasks={"vendr.*": {"lock_key": True}})
    vendor_task(bench)
    assert idle_patterns(bench.app) == ["vendr.*"]
    start_worker(bench)
    assert "no registered task matches 'vendr.*'" in caplog.text


def test_a_worker_warns_of_a_plain_task_with_lock_options(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.task(lambda: None, base=Task, name="plain", lock_key="k")
    start_worker(bench)
    assert "Task 'plain' has lock_key, but is not a RedlockTask, so it does not lock" in caplog.text


def test_a_worker_names_the_redlock_tasks_that_do_not_lock(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    bench = Bench()
    bench.task(lambda: None, name="forgotten")
    bench.task(lambda: None, lock_key="k")
    start_worker(bench)
    assert "without any lock option, so they do not lock: forgotten." in caplog.text


async def fetch() -> None: ...


@pytest.fixture
def refusing() -> Iterator[Bench]:
    """An app with a pattern that matches two tasks that can lock, after two that cannot."""
    bench = Bench(redlock_tasks={"vendor.*": {"lock_key": True}})
    for name in ("vendor.fetch", "vendor.fetch_all"):
        bench.app.task(fetch, name=name, shared=False)
    for name in ("vendor.report", "vendor.send"):
        vendor_task(bench, name=name)
    yield bench
    bench.close()


REFUSED = (
    r"(?s)task 'vendor\.fetch': .* task 'vendor\.fetch_all': .* redlock_tasks .*"
    r"add to redlock_tasks: \{'vendor\.fetch': None, 'vendor\.fetch_all': None\}"
)


def test_tasks_that_cannot_lock_keep_no_other_from_locking(refusing: Bench) -> None:
    refusing.app.finalize()
    locking = {name for name, task in refusing.app.tasks.items() if isinstance(task, RedlockTask)}
    assert locking == {"vendor.report", "vendor.send"}


def test_a_publisher_logs_which_tasks_cannot_lock(
    refusing: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    refusing.app.finalize()
    (record,) = (record for record in caplog.records if record.levelname == "ERROR")
    assert record.name == "celery_redlock.tasks.hooks"
    assert re.search(REFUSED, record.getMessage())


def test_tasks_that_cannot_lock_end_the_workers_start(refusing: Bench) -> None:
    with pytest.raises(ConfigurationError, match=REFUSED):
        start_worker(refusing)


@pytest.mark.parametrize("name", ["vendor.fetch", "vendor.f*"])
def test_none_leaves_a_task_out_of_the_patterns(name: str) -> None:
    bench = Bench(redlock_tasks={name: None, **PATTERN})
    bench.app.task(fetch, name="vendor.fetch", shared=False)
    vendor_task(bench)
    start_worker(bench)
    assert not isinstance(bench.app.tasks["vendor.fetch"], RedlockTask)
    assert isinstance(bench.app.tasks["vendor.report"], RedlockTask)


def test_a_pattern_whose_key_does_not_fit_ends_the_workers_start() -> None:
    bench = Bench(redlock_tasks={"vendor.*": {"lock_key": "report:{year}"}})
    vendor_task(bench)
    with pytest.raises(ConfigurationError, match=r"task 'vendor\.report': .*year"):
        start_worker(bench)


def test_a_worker_whose_tasks_do_not_lock_asks_no_node() -> None:
    bench = Bench()
    bench.app.conf.redlock_nodes = None
    bench.task(lambda: None)
    start_worker(bench)


def test_a_worker_whose_broker_cannot_be_the_node_is_told_so() -> None:
    bench = Bench()
    bench.app.conf.redlock_nodes = None
    bench.task(lambda: None, lock_key="k")
    with pytest.raises(ConfigurationError, match="redlock_nodes is not set"):
        start_worker(bench)
