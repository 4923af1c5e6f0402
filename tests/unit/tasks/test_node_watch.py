"""How tasks report a missed quorum to the log of their worker."""

from __future__ import annotations

import itertools
import select
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_redlock import QuorumUnavailable, RedlockTask
from celery_redlock.tasks import node_watch
from celery_redlock.tasks.bootsteps import NodeWatchStep
from celery_redlock.tasks.node_watch import NodeWatch, is_watched, report_unavailable

NODES = ("a", "b", "c")
_numbers = itertools.count()


@pytest.fixture
def app() -> Celery:
    name = f"watched-{next(_numbers)}"
    app = Celery(name, broker="memory://", set_as_current=False)
    app.conf.redlock_nodes = [f"memory://{name}-{node}" for node in NODES]
    return app


@pytest.fixture
def watch(app: Celery) -> Iterator[NodeWatch]:
    watch = NodeWatch(app)
    yield watch
    watch.stop()


def task_of(app: Celery, **options: Any) -> Any:
    def body() -> None:
        pass

    return app.task(body, base=RedlockTask, shared=False, name=f"t{next(_numbers)}", **options)


def test_without_a_worker_a_report_is_dropped(app: Celery) -> None:
    task = task_of(app, lock_key="k")
    report_unavailable(task, "id", task.redlock_plan.options, QuorumUnavailable("none"))


def test_reports_of_a_long_outage_never_wait_for_a_log_that_is_not_kept(watch: NodeWatch) -> None:
    for _ in range(2000):
        watch.report(1.0, {"node": "silent"}, "Task t[1] met it first.")


def test_a_report_is_never_longer_than_a_pipe_takes_whole() -> None:
    nodes = {f"redis://{'h' * 200}-{number}": "r" * 200 for number in range(100)}
    assert len(node_watch._encoded(1.0, nodes, "m" * 10_000)) <= select.PIPE_BUF


def test_only_a_worker_with_tasks_that_lock_keeps_the_log(app: Celery) -> None:
    worker = SimpleNamespace(app=app, steps=[])
    step = NodeWatchStep(worker)
    assert step.create(worker) is None
    task_of(app, lock_key="k")
    app.finalize()
    watch = step.create(worker)
    assert watch is not None
    watch.stop()


def test_a_watch_that_is_stopped_takes_no_more_reports(app: Celery) -> None:
    watch = NodeWatch(app)
    watch.start()
    watch.stop()
    watch.stop()
    watch.report(time.monotonic(), {}, "late")


def test_a_process_whose_worker_has_ended_logs_its_nodes_itself_again(app: Celery) -> None:
    watch = NodeWatch(app)
    assert is_watched(app)
    watch.stop()
    assert not is_watched(app)
