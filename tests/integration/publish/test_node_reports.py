"""A publisher reports nodes that refuse it, that fail, or that make no quorum."""

from __future__ import annotations

import itertools
import logging
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, signals
from celery.beat import Scheduler

from celery_redlock import ConfigurationError, DuplicateResult, RedlockTask
from celery_redlock.beat import RedlockScheduler
from celery_redlock.signals import lock_node_failed
from celery_redlock.tasks.config.client import (
    are_nodes_checked,
    close_clients,
    record_nodes_checked,
)
from celery_redlock.tasks.declarations import find_mistakes
from celery_redlock.tasks.publish import node_reports
from celery_redlock.testing import LocalCluster
from tests.support.events import counters, listening
from tests.support.signals import kept_handlers
from tests.support.waiting import wait_until

__all__ = ["kept_handlers"]

PASSWORD = "open-sesame"
# A refusal comes at once; on a busy machine the tests must not take it for silence.
CALM = 10.0
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def guarded() -> Iterator[LocalCluster]:
    with LocalCluster(3, requirepass=PASSWORD) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def in_cluster_mode() -> Iterator[LocalCluster]:
    with LocalCluster(3, armed=False, config={"cluster-enabled": "yes"}) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    close_clients()


@pytest.fixture
def refused() -> Iterator[list[str]]:
    """Addresses at which nothing listens."""
    taken = [socket.socket() for _ in range(3)]
    for one in taken:
        one.bind(("127.0.0.1", 0))
    yield [f"redis://127.0.0.1:{one.getsockname()[1]}/0" for one in taken]
    for one in taken:
        one.close()


def wrong(url: str) -> str:
    return url.replace(PASSWORD, "close-sesame")


def publisher(nodes: list[str], **settings: Any) -> Any:
    """Return a unique task of a new app, whose messages stay in its memory."""
    name = f"reports-{next(_numbers)}"
    app = Celery(name, broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(
        {
            "redlock_nodes": nodes,
            "redlock_node_timeout": CALM,
            "task_default_queue": name,
            **settings,
        }
    )

    options = {"lock_key": "{n}", "lock_mode": "until_executed"}

    @app.task(base=RedlockTask, name="job", shared=False, **options)
    def job(n: Any) -> None:
        """Do nothing."""

    return job


def sent(task: Any) -> int:
    with task.app.connection_for_read() as connection:
        queue = connection.SimpleQueue(task.app.conf.task_default_queue)
        return int(queue.qsize())


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (wrong, "invalid username-password pair"),
        (lambda url: url.replace(f":{PASSWORD}@", ""), "asks for a password, but its URL has none"),
    ],
    ids=["wrong password", "missing password"],
)
def test_nodes_that_refuse_raise_at_each_publish_and_nothing_is_sent(
    guarded: LocalCluster, spoil: Callable[[str], str], named: str
) -> None:
    job = publisher([spoil(url) for url in guarded.urls])
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=named) as error:
            job.delay(1)
        assert "sesame" not in str(error.value)
    assert sent(job) == 0


def test_nodes_in_cluster_mode_raise_at_the_first_publish(in_cluster_mode: LocalCluster) -> None:
    with pytest.raises(ConfigurationError, match="runs in cluster mode"):
        publisher(list(in_cluster_mode.urls)).delay(1)


def test_one_refusing_node_of_three_raises_and_leaves_no_lock(guarded: LocalCluster) -> None:
    job = publisher([*guarded.urls[:2], wrong(guarded.urls[2])])
    # Its refusal may come later than the votes of the others; until then a publish is as any other.
    refused = wait_until(lambda: _refused_key(job, f"minority-{next(_numbers)}"))
    close_clients()

    assert not isinstance(publisher(list(guarded.urls)).delay(refused), DuplicateResult)


def _refused_key(job: Any, key: str) -> str | None:
    try:
        job.delay(key)
    except ConfigurationError:
        return key
    return None


def test_warn_sends_without_the_lock_and_logs_why(
    guarded: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = [wrong(url) for url in guarded.urls]
    job = publisher(nodes, redlock_on_unusable_node="warn")
    job.delay(1)
    assert sent(job) == 1
    (line,) = [one for one in warnings_of(caplog) if "is sent without its lock" in one]
    assert "invalid username-password pair" in line


def test_nodes_that_have_served_only_warn_when_they_refuse(
    guarded: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    job = publisher(list(guarded.urls))
    wait_until(lambda: job.delay(next(_numbers)) and are_nodes_checked(job.app))
    close_clients()
    job.app.conf.redlock_nodes = [wrong(url) for url in guarded.urls]

    job.delay(1)
    assert any("is sent without its lock" in one for one in warnings_of(caplog))


def test_a_forked_child_relies_on_what_its_parent_has_checked(refused: list[str]) -> None:
    job = publisher(refused)
    record_nodes_checked(job.app)
    child = os.fork()
    if child == 0:
        os._exit(0 if are_nodes_checked(job.app) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_worker_is_refused_or_warned_as_the_setting_says(guarded: LocalCluster) -> None:
    nodes = [wrong(url) for url in guarded.urls]
    for choice, is_refused in (("raise", True), ("warn", False)):
        job = publisher(nodes, redlock_on_unusable_node=choice)
        mistakes, problems = find_mistakes(job.app, with_nodes=True)
        assert bool(mistakes) is is_refused
        assert len(problems) == (0 if is_refused else 3)


class Beat:
    """A beat that starts, as Celery's signal shows it."""

    def __init__(self, app: Any, scheduler: type) -> None:
        self.app = app
        self.scheduler = scheduler(app, lazy=True)


@pytest.mark.parametrize("scheduler", [Scheduler, RedlockScheduler])
def test_a_beat_ends_whose_nodes_can_never_serve(
    guarded: LocalCluster,
    kept_handlers: None,
    scheduler: type,
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = [wrong(url) for url in guarded.urls]
    with pytest.raises(SystemExit, match="invalid username-password pair"):
        signals.beat_init.send(sender=Beat(publisher(nodes).app, scheduler))

    tolerant = publisher(nodes, redlock_on_unusable_node="warn")
    signals.beat_init.send(sender=Beat(tolerant.app, scheduler))
    assert sum("cannot be used" in one for one in warnings_of(caplog)) == 3


def test_the_same_warning_is_logged_once_a_minute_with_the_number_of_the_others(
    refused: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(node_reports, "clock", lambda: now)
    job = publisher(refused)
    before = counters()["task_without_lock"]
    for _ in range(3):
        job.delay(1)
    now += node_reports.QUIET
    job.delay(1)

    first, second = (one for one in warnings_of(caplog) if "is sent without its lock" in one)
    assert "more like this" not in first
    assert second.endswith("(2 more like this since the last line.)")
    assert counters()["task_without_lock"] - before == 4


def test_a_failing_minority_is_warned_of_and_counted(
    guarded: LocalCluster, refused: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    job = publisher([*guarded.urls[:2], refused[0]])
    before = counters()["lock_node_failed"]
    with listening(lock_node_failed) as heard:
        wait_until(lambda: job.delay(next(_numbers)) and heard)

    assert counters()["lock_node_failed"] - before == len(heard)
    (line,) = warnings_of(caplog)
    assert line.startswith(f"Lock nodes fail: {refused[0]}: ConnectionError")
    assert line.endswith("Locks are acquired as long as 2 of 3 nodes reply.")
