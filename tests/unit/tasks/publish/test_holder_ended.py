"""A call that is sent by whoever can know that the first one has ended is no duplicate."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from celery import uuid

from celery_redlock import is_duplicate
from celery_redlock.tasks.message.envelope import HEADER, Envelope
from celery_redlock.tasks.publish import unique_publish
from tests.support.tasks import Bench
from tests.support.unique import declare, holder, owned_by
from tests.unit.tasks.jobs import raising, retry_once, sent_while_released


@pytest.fixture
def first() -> str:
    """The id of the first call; results of one id are seen by all apps of this process."""
    return uuid()


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unique_publish, "RELEASE_WAIT", 0.001)


def ended(bench: Bench, task: Any, task_id: str) -> Any:
    """Have the key held by a call that has stored its result; return its lease."""
    lease = owned_by(bench, task_id)
    task.backend.store_result(task_id, "done", "SUCCESS")
    return lease


def test_its_lock_is_taken_as_soon_as_the_first_lets_go(
    first: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unique_publish, "RELEASE_WAIT", 60)
    task = declare(bench)
    sent = sent_while_released(task, ended(bench, task, first))
    assert (holder(bench).task_id, is_duplicate(sent)) == (sent.id, False)


def test_it_is_sent_without_a_lock_where_the_first_does_not_let_go(
    first: str, bench: Bench, no_patience: None
) -> None:
    task = declare(bench)
    ended(bench, task, first)
    envelope = Envelope.read(bench.send(task))
    assert (envelope.reservation, envelope.after) == (None, first)


def test_in_the_worker_it_waits_until_the_first_lets_go(
    first: str, bench: Bench, no_patience: None
) -> None:
    task = declare(bench)
    lease = ended(bench, task, first)
    request = bench.send(task)
    assert bench.run(request).state == "RETRY"
    lease.release()
    assert bench.run(bench.receive()).value == "ran"


def test_the_result_of_an_earlier_task_with_the_same_id_says_nothing(
    first: str, bench: Bench
) -> None:
    task = declare(bench)
    task.backend.store_result(first, "done", "SUCCESS")
    owned_by(bench, first)
    assert task.delay().id == first


def test_a_result_that_nobody_wants_is_not_asked_for(first: str, bench: Bench) -> None:
    task = declare(bench, ignore_result=True)
    owned_by(bench, first)
    task.backend = None
    assert task.delay().id == first


def test_a_backend_that_does_not_answer_leaves_it_a_duplicate(first: str, bench: Bench) -> None:
    task = declare(bench)
    owned_by(bench, first)
    task.backend.get_task_meta = raising(OSError("no backend"))
    assert task.delay().id == first


@pytest.mark.usefixtures("no_patience")
@pytest.mark.parametrize("by", ["link", "chain"])
def test_what_a_tasks_end_sends_can_call_it_again(bench: Bench, by: str) -> None:
    task = declare(bench)
    calls: list[Any] = []
    follower = bench.task(lambda value: calls.append(task.delay().id), name="next", base=None)
    step = task.s()
    if by == "link":
        step.link(follower.s())
        step.apply_async()
    else:
        (step | follower.s()).apply_async()
    first = bench.receive()
    bench.run(first)
    following = bench.receive()
    assert following[HEADER]["after"] == first["id"]
    owned_by(bench, first["id"])
    bench.run(following)
    assert calls != [first["id"]]


def test_what_a_body_sends_is_not_sent_after_it(bench: Bench) -> None:
    follower = bench.task(lambda: None, name="next", base=None)
    bench.call(declare(bench, lambda self: follower.delay() and None))
    assert HEADER not in bench.receive()


def test_a_retry_has_not_ended(bench: Bench) -> None:
    follower = bench.task(lambda: None, name="next", base=None)
    task = declare(bench, retry_once)
    task.on_retry = lambda *args, **kwargs: follower.delay()
    bench.call(task)
    retry, other = sorted((bench.receive(), bench.receive()), key=lambda at: at["task"])
    assert (retry["task"], HEADER in other) == ("job", False)


def test_a_minimum_hold_keeps_duplicates_away_after_the_end(bench: Bench, first: str) -> None:
    task = declare(bench, lock_at_least_for=30)
    ended(bench, task, first)
    assert task.delay().id == first


def test_a_result_in_the_local_time_of_the_app_is_read_as_such(
    bench: Bench, first: str, no_patience: None
) -> None:
    bench.app.conf.update(timezone="America/New_York", enable_utc=False)
    task = declare(bench)
    owned_by(bench, first)
    there = datetime.now(bench.app.timezone).replace(tzinfo=None)
    meta = {"status": "SUCCESS", "date_done": there}
    task.backend.get_task_meta = lambda *args, **kwargs: meta
    assert Envelope.read(bench.send(task)).after == first


def test_the_end_of_another_task_with_the_key_is_not_asked_for(bench: Bench, first: str) -> None:
    other = bench.task(lambda: None, name="other", lock_key="k", lock_mode="until_executed")
    owned_by(bench, first, task="another")
    other.backend.get_task_meta = raising(ZeroDivisionError())
    envelope = Envelope.read(bench.send(other))
    assert (envelope.reservation, envelope.after) == (None, None)
