"""What the doctor finds at the broker of an app."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_redlock import RedlockTask
from celery_redlock.admin.broker_diagnosis import diagnose_broker
from celery_redlock.admin.diagnosis import Severity
from celery_redlock.testing import LocalCluster
from celery_redlock.testing.server import ReservedPort
from tests.support.waiting import TIMEOUT

TASK: dict[str, Any] = {"base": RedlockTask, "shared": False, "lock_key": "k"}


@pytest.fixture(scope="module")
def server() -> Iterator[LocalCluster]:
    with LocalCluster(1, armed=False) as server:
        yield server


@pytest.fixture
def app(server: LocalCluster) -> Iterator[Celery]:
    """An app with an empty broker."""
    server.client(0).flushall()
    app = Celery("shop", broker=server.urls[0], set_as_current=False)
    app.conf.redlock_nodes = ["memory://broker-diagnosis"]
    yield app
    app.close()


def body() -> None:
    """Of all tasks here."""


def codes(app: Celery) -> list[str]:
    return [finding.code for finding in diagnose_broker(app)]


def test_a_broker_whose_messages_are_in_queues_has_no_finding(app: Celery) -> None:
    app.task(body, name="job", lock_mode="until_executed", **TASK).delay()
    assert codes(app) == []


@pytest.mark.parametrize("options", [{}, {"global_keyprefix": "shop:"}])
def test_messages_that_a_worker_has_and_the_broker_will_deliver_again_are_counted(
    app: Celery, options: dict[str, Any]
) -> None:
    app.conf.broker_transport_options = {"visibility_timeout": 100, **options}
    app.send_task("job")
    app.send_task("job")
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue("celery")
        messages = [queue.get(timeout=TIMEOUT) for _ in range(2)]
        (finding,) = diagnose_broker(app)
        for message in messages:
            message.ack()
        queue.close()
    assert (finding.code, finding.severity) == ("messages-unacknowledged", Severity.INFO)
    assert "in no queue: 2." in finding.message
    (seconds,) = re.findall(r"the oldest in ([\d.]+) s", finding.message)
    assert 0 < float(seconds) <= 100
    assert codes(app) == []


def test_a_lock_that_ends_before_its_message_is_delivered_again_is_a_warning(app: Celery) -> None:
    app.conf.broker_transport_options = {"visibility_timeout": 7200}
    unique = {**TASK, "lock_mode": "until_executed", "lock_dedupe_window": 7201}
    app.task(body, name="short", **unique)
    app.task(body, name="long", lock_queue_ttl=7201, **unique)
    app.task(body, name="run", **TASK)
    (finding,) = diagnose_broker(app)
    assert (finding.code, finding.severity) == ("visibility-timeout", Severity.WARNING)
    assert "7,200 s, and lock_queue_ttl of short is not longer" in finding.message


def test_a_marker_that_ends_before_a_message_is_delivered_again_is_a_warning(app: Celery) -> None:
    app.conf.broker_transport_options = {"visibility_timeout": 7200}
    options = {**TASK, "lock_mode": "until_expired", "lock_window": 60}
    app.task(body, name="short", **options)
    (finding,) = diagnose_broker(app)
    assert "lock_dedupe_window of short is not longer" in finding.message


def test_a_broker_that_does_not_answer_is_named_without_its_password(app: Celery) -> None:
    port = ReservedPort()
    app.conf.broker_url = f"redis://user:secret@127.0.0.1:{port.number}/0"
    (finding,) = diagnose_broker(app)
    port.release()
    assert (finding.code, finding.severity) == ("broker-unreachable", Severity.WARNING)
    assert f"127.0.0.1:{port.number}" in finding.message
    assert "secret" not in finding.message


def test_of_a_broker_that_is_not_redis_nothing_is_asked() -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    assert codes(app) == []
