"""What goes wrong in a publish: what is sent then, what is left, and what its caller hears."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.exceptions import EncodeError

from celery_redlock.errors import LockContended, LockKeyError
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.publish import unique_publish
from tests.support.events import counters
from tests.support.tasks import Bench
from tests.support.unique import declare
from tests.unit.tasks.jobs import before_next, raising


def test_arguments_that_cannot_be_sent_free_the_lock(bench: Bench) -> None:
    task = bench.task(lambda thing: None, lock_key="k", lock_mode="until_executed")
    with pytest.raises(EncodeError):
        task.delay(object())
    assert not bench.is_held("k")


def test_arguments_that_do_not_fit_are_refused_in_celerys_words(bench: Bench) -> None:
    task = bench.task(lambda a: None, lock_mode="until_executed")
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        task.delay()
    with pytest.raises(TypeError, match="must be a list or tuple"):
        task.apply_async({1})


def test_arguments_that_nobody_checks_make_no_key(bench: Bench) -> None:
    task = bench.task(lambda a: None, lock_mode="until_executed", typing=False)
    with pytest.raises(LockKeyError, match="do not fit its signature"):
        task.delay()


def test_a_key_function_that_fails_reaches_the_caller_and_nothing_is_sent(bench: Bench) -> None:
    task = bench.task(lambda a: None, lock_key=lambda a: 1 / a, lock_mode="until_executed")
    with pytest.raises(LockKeyError, match="failed: ZeroDivisionError"):
        task.delay(0)
    assert bench.queue_length == 0


def test_what_follows_a_task_is_sent_though_its_arguments_make_no_key(bench: Bench) -> None:
    task = bench.task(lambda a: None, lock_key=lambda a: 1 / a, lock_mode="until_executed")
    message = bench.send(task, 0, link=bench.task(lambda *_: None, name="next").s())
    assert Envelope.read(message).reservation is None


def test_without_a_quorum_it_is_sent_without_its_lock_and_says_so(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    task = declare(bench)
    bench.node.kill()
    before = counters()["task_without_lock"]
    with caplog.at_level(logging.WARNING):
        result = task.delay()
    message = bench.receive()
    assert (Envelope.read(message).reservation, message["id"]) == (None, result.id)
    assert "is sent without its lock" in caplog.text
    assert counters()["task_without_lock"] - before == 1


def test_while_nothing_is_decided_it_is_sent_without_its_lock(bench: Bench, client: Any) -> None:
    split = LockContended("several contenders share the nodes", "k", "x", 1.0, True)
    task = declare(bench)
    before_next(client, "reserve", raising(split))
    assert Envelope.read(bench.send(task)).reservation is None


def test_a_publish_that_outlasts_the_grace_is_reported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = declare(bench)
    readings = iter([100.0, 111.0])
    clock = SimpleNamespace(time=time.time, monotonic=lambda: next(readings))
    monkeypatch.setattr(unique_publish, "time", clock)
    task.delay()
    assert "took 11.0 s, longer than the 10 s for which its lock is kept" in caplog.text
