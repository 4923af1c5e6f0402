"""A task that waits gives its lock to a newer one, where that is the policy."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from kombu.exceptions import OperationalError
from tenacity import Retrying

from celery_redlock import is_duplicate
from celery_redlock.core import client_of
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.message.owner_label import label_for
from celery_redlock.tasks.publish import unique_publish
from celery_redlock.tasks.rules.facts import Role
from tests.support.tasks import Bench
from tests.support.unique import KEY, QUEUE, declare, holder, left, mark, owned_by, role, value
from tests.support.waiting import wait_until
from tests.unit.tasks.jobs import before_next, break_broker, counting, raising, sent_while_released


@pytest.mark.parametrize("options", [{}, {"task_id": "mine"}], ids=["", "with an id of its own"])
def test_a_queued_task_gives_its_lock_to_the_newer_one(
    bench: Bench, options: dict[str, str]
) -> None:
    task = declare(bench, lock_on_duplicate="replace")
    first, second = task.delay(), task.apply_async(**options)
    assert holder(bench).task_id == second.id != first.id
    assert not is_duplicate(second)
    bench.receive()
    assert Envelope.read(bench.receive()).reservation.owner == value(bench)


def test_the_lock_of_the_newer_one_lasts_as_long_as_any(bench: Bench) -> None:
    task = declare(bench, lock_on_duplicate="replace")
    task.delay()
    task.delay()
    wait_until(lambda: left(bench) > 3000, message="it was not lengthened")


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"task_id": "mine"}, {"task_id": "mine"}),
        ({}, {"task_id": "begun", "retries": 1}),
        ({}, {"task_id": "begun", "replaced_task_nesting": 1}),
    ],
    ids=["of its own id", "if it has begun", "if it replaces what has begun"],
)
def test_a_message_does_not_replace_an_earlier_one(
    bench: Bench, first: dict[str, Any], then: dict[str, Any]
) -> None:
    task = declare(bench, lock_on_duplicate="replace")
    task.apply_async(**first)
    task.apply_async(**then)
    assert bench.queue_length == 2


def test_the_older_one_gets_its_lock_back_and_runs_if_the_newer_one_cannot_be_sent(
    bench: Bench,
) -> None:
    task = declare(bench, lock_on_duplicate="replace")
    older = bench.send(task)
    lock = value(bench)
    break_broker(bench)
    with pytest.raises(OperationalError):
        task.delay()
    assert (value(bench), left(bench) > 5) == (lock, True)
    assert bench.run(older).value == "ran"


def test_a_call_with_the_id_of_one_that_was_replaced_is_not_discarded(
    bench: Bench, revoked: list[str]
) -> None:
    task, runs = counting(declare, bench, lock_on_duplicate="replace")
    messages = [bench.send(task, task_id=task_id) for task_id in ("x", "y", "x")]
    for message in messages:
        bench.run(message)
    assert runs == ["x"]
    assert revoked == []  # a worker would discard the third as well


def test_a_task_that_waits_is_not_replaced_for_some_of_its_keys(bench: Bench) -> None:
    waiting = owned_by(bench, "other", Role.QUEUED).owner
    bench.send(declare(bench, lock_key=["k", "j"], lock_on_duplicate="replace"))
    assert value(bench) == waiting


def test_the_older_one_is_ended_without_its_body_though_the_newer_one_has_finished(
    bench: Bench, mode: str
) -> None:
    task, runs = counting(declare, bench, lock_mode=mode, lock_on_duplicate="replace")
    older, newer = bench.send(task), bench.send(task)
    bench.run(newer)
    assert bench.run(older).state == "IGNORED"
    assert runs == [newer["id"]]
    assert bench.app.AsyncResult(older["id"]).state == "REVOKED"


def test_the_older_one_does_not_wait_to_learn_that_it_was_replaced(
    bench: Bench, mode: str, no_waiting: None
) -> None:
    task = declare(bench, lock_mode=mode, lock_wait=30, lock_on_duplicate="replace")
    older = bench.send(task)
    bench.send(task)
    assert bench.run(older).state == "IGNORED"


def test_a_second_delivery_of_a_replaced_one_is_ignored(bench: Bench) -> None:
    told: list[str] = []
    task = declare(bench, lock_on_duplicate="replace")
    older = bench.send(task)
    bench.send(task)
    task.backend.mark_as_revoked = lambda task_id, *args, **kwargs: told.append(task_id)
    assert [bench.run(older).state for _ in range(2)] == ["IGNORED", "IGNORED"]
    assert told == [older["id"]]


def test_one_that_is_replaced_while_it_waits_for_another_stands_back(bench: Bench) -> None:
    def replace(state: Any) -> None:
        if not newer:
            newer.append(task.delay().id)

    newer: list[str] = []
    task = declare(
        bench,
        lock_mode="until_and_while_executing",
        lock_wait=0.001,
        lock_retry=Retrying(after=replace),
        lock_on_duplicate="replace",
        lock_on_conflict="raise",
    )
    owned_by(bench, "other")
    older = bench.send(task)
    assert bench.run(older).state == "IGNORED"
    assert bench.app.AsyncResult(older["id"]).state == "REVOKED"


def test_what_was_replaced_is_remembered_for_longer_than_it_may_wait(bench: Bench) -> None:
    task = declare(bench, lock_on_duplicate="replace", lock_queue_ttl=50, lock_dedupe_window=40)
    older = bench.send(task)
    task.delay()
    assert role(bench, mark(bench, older)) is Role.REPLACED
    assert 85 < left(bench, mark(bench, older)) <= 95


def test_what_was_replaced_while_it_was_sent_is_remembered_beyond_its_countdown(
    bench: Bench,
) -> None:
    task = declare(bench, lock_on_duplicate="replace", lock_queue_ttl=50, lock_dedupe_window=40)
    later = {"countdown": 1000}
    before_next(bench.app.amqp, "send_task_message", lambda: task.apply_async(**later))
    task.apply_async(**later)
    newer, older = bench.receive(), bench.receive()
    assert holder(bench).task_id == newer["id"]
    assert left(bench, mark(bench, older)) > 1000


def test_the_older_one_is_put_back_until_the_newer_one_is_out(bench: Bench) -> None:
    states: list[str] = []
    task = declare(bench, lock_on_duplicate="replace")
    older = bench.send(task)
    before_next(bench.app.amqp, "send_task_message", lambda: states.append(bench.run(older).state))
    task.delay()
    assert states == ["IGNORED"]
    again = bench.receive()
    assert again["id"] == older["id"]
    assert bench.run(again).state == "IGNORED"
    assert bench.app.AsyncResult(older["id"]).state == "REVOKED"


def test_the_older_one_runs_where_the_newer_one_cannot_be_sent_and_is_slow_to_give_back(
    bench: Bench, client: Any
) -> None:
    task = declare(bench, lock_on_duplicate="replace")
    older = bench.send(task)
    cancel, states = client.cancel, list[str]()

    def look(*args: Any, **kwargs: Any) -> Any:
        is_given_back = cancel(*args, **kwargs)
        if not states:
            states.append(bench.run(older).state)
        return is_given_back

    client.cancel = look
    before_next(bench.app.amqp, "send_task_message", raising(OperationalError("no broker")))
    with pytest.raises(OperationalError):
        task.delay()
    assert states == ["IGNORED"]
    assert bench.run(bench.receive()).state == "SUCCESS"


def test_what_has_been_replaced_is_not_replaced_again(bench: Bench) -> None:
    task = declare(bench, lock_on_duplicate="replace")
    requests = [bench.send(task) for _ in range(3)]
    states = [bench.run(request).state for request in reversed(requests)]
    assert states == ["SUCCESS", "IGNORED", "IGNORED"]


@pytest.mark.parametrize("mode", ["until_executing", "until_and_while_executing"])
def test_the_newer_one_gets_the_lock_that_a_worker_is_about_to_give_up(
    bench: Bench, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unique_publish, "RELEASE_WAIT", 60)
    task = declare(bench, lock_mode=mode, lock_on_duplicate="replace")
    place = QUEUE if mode == "until_and_while_executing" else KEY
    sent = sent_while_released(task, owned_by(bench, "starting", place=place))
    assert holder(bench, place).task_id == sent.id


def test_a_call_that_finds_its_older_one_begun_gets_the_lock_when_that_gives_it_up(
    bench: Bench, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unique_publish, "RELEASE_WAIT", 60)
    task = declare(bench, lock_mode="until_executing", lock_on_duplicate="replace")
    lock = Envelope.read(bench.send(task)).reservation
    reserve = client.reserve
    giving_up: list[threading.Thread] = []

    def begin_first(*args: Any, previous: Any = None, **options: Any) -> Any:
        if previous and not giving_up:
            label = label_for(Role.RUNNING, "older", "w@host", task="job")
            lease = client_of(bench.elsewhere).acquire_for_task(
                ("k",), ttl=60, label=label, reservation=lock
            )
            giving_up.append(threading.Thread(target=lease.release))
            try:
                return reserve(*args, previous=previous, **options)
            finally:
                giving_up[0].start()
        return reserve(*args, previous=previous, **options)

    client.reserve = begin_first
    newer = task.delay()
    giving_up[0].join()
    assert holder(bench).task_id == newer.id


def test_the_oldest_one_does_not_run_after_the_newest_while_the_publisher_between_is_paused(
    bench: Bench, client: Any
) -> None:
    runs: list[int] = []
    task = declare(bench, lambda self, number: runs.append(number), lock_on_duplicate="replace")
    oldest = bench.send(task, 1)
    reserve = client.reserve

    def pause_afterwards(*args: Any, **options: Any) -> Any:
        reserved = reserve(*args, **options)
        if options["previous"]:
            client.reserve = reserve
            bench.run(bench.send(task, 3))
            bench.run(oldest)
        return reserved

    client.reserve = pause_afterwards
    task.delay(2)
    assert runs == [3]


@pytest.mark.parametrize("fails", [True, False])
def test_the_oldest_one_does_not_run_where_the_publisher_between_fails_or_dies_after_a_takeover(
    bench: Bench, client: Any, fails: bool
) -> None:
    def take_over_and_fail() -> None:
        newest.append(bench.send(task, 3))
        if not fails:  # it says nothing to the nodes any more
            client.cancel = lambda *_, **__: True
        raise OperationalError("no broker")

    runs: list[int] = []
    newest: list[Any] = []
    task = declare(bench, lambda self, number: runs.append(number), lock_on_duplicate="replace")
    oldest = bench.send(task, 1)
    before_next(bench.app.amqp, "send_task_message", take_over_and_fail)
    with pytest.raises(OperationalError):
        task.delay(2)
    bench.run(newest[0])
    bench.run(oldest)
    assert runs == [3]
    assert bench.app.AsyncResult(oldest["id"]).state == "REVOKED"


def test_a_call_that_fails_leaves_the_oldest_ones_marker_to_the_newest(
    bench: Bench, client: Any
) -> None:
    def take_over_and_fail() -> None:
        client.relabel = lambda *given: late.append(given)
        task.delay(3)
        raise OperationalError("no broker")

    runs: list[int] = []
    task = declare(bench, lambda self, number: runs.append(number), lock_on_duplicate="replace")
    oldest = bench.send(task, 1)
    relabel, late = client.relabel, list[Any]()
    before_next(bench.app.amqp, "send_task_message", take_over_and_fail)
    with pytest.raises(OperationalError):
        task.delay(2)
    for given in late:
        relabel(*given)
    bench.run(bench.receive())
    bench.run(oldest)
    assert runs == [3]
