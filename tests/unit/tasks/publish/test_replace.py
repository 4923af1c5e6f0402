"""A task that waits gives its lock to a newer one, where that is the policy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from kombu.exceptions import OperationalError
from tenacity import Retrying

from celery_redlock import is_duplicate
from celery_redlock.core import client_of
from celery_redlock.tasks.config.client import client_for
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.message.owner_label import label_for
from celery_redlock.tasks.publish import unique_publish
from celery_redlock.tasks.rules.facts import Role
from tests.support.tasks import Bench
from tests.support.unique import KEY, QUEUE, declare, holder, left, mark, owned_by, role, value
from tests.support.waiting import wait_until


@pytest.fixture
def revoked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    revoked: list[str] = []
    monkeypatch.setattr(bench.app.control, "revoke", revoked.append)
    return revoked


def test_a_queued_task_gives_its_lock_to_the_newer_one(bench: Bench, revoked: list[str]) -> None:
    task = declare(bench, lock_on_duplicate="replace")
    first, second = task.delay(), task.delay()
    named = holder(bench)
    assert named is not None
    assert (named.task_id, revoked) == (second.id, [first.id])
    assert not is_duplicate(second)
    bench.receive()
    lock = Envelope.read(bench.receive()).reservation
    assert lock is not None
    assert lock.owner == value(bench)


def test_the_lock_of_the_newer_one_lasts_as_long_as_any(bench: Bench, revoked: list[str]) -> None:
    task = declare(bench, lock_on_duplicate="replace")
    task.delay()
    task.delay()
    wait_until(lambda: left(bench) > 3000, message="it was not lengthened")


def test_also_a_newer_one_with_an_id_of_its_own(bench: Bench, revoked: list[str]) -> None:
    task = declare(bench, lock_on_duplicate="replace")
    first = task.delay()
    task.apply_async(task_id="mine")
    assert revoked == [first.id]
    named = holder(bench)
    assert named is not None
    assert named.task_id == "mine"


def test_a_message_does_not_replace_an_earlier_one_of_its_own_id(
    bench: Bench, revoked: list[str]
) -> None:
    task = declare(bench, lock_on_duplicate="replace")
    task.apply_async(task_id="mine")
    task.apply_async(task_id="mine")
    assert (bench.queue_length, revoked) == (2, [])


@pytest.mark.parametrize("option", ["retries", "replaced_task_nesting"])
def test_work_that_has_begun_does_not_replace_what_was_sent_later(
    bench: Bench, revoked: list[str], option: str
) -> None:
    task = declare(bench, lock_on_duplicate="replace")
    task.delay()
    task.apply_async(task_id="begun", **{option: 1})
    assert (bench.queue_length, revoked) == (2, [])


def test_a_running_task_is_left_alone_and_the_newer_one_waits(
    bench: Bench, revoked: list[str]
) -> None:
    running = owned_by(bench, "other").owner
    message = bench.send(declare(bench, lock_on_duplicate="replace"))
    assert (value(bench), revoked) == (running, [])
    assert Envelope.read(message).reservation is None


def test_a_finished_tasks_window_cannot_be_replaced(bench: Bench, revoked: list[str]) -> None:
    owned_by(bench, "finished", Role.FINISHED)
    assert declare(bench, lock_on_duplicate="replace").delay().id == "finished"
    assert (bench.queue_length, revoked) == (0, [])


def test_the_older_one_gets_its_lock_back_if_the_newer_one_cannot_be_sent(
    bench: Bench, revoked: list[str], break_broker: Callable[[], None]
) -> None:
    task = declare(bench, lock_on_duplicate="replace")
    task.delay()
    older = value(bench)
    break_broker()
    with pytest.raises(OperationalError):
        task.delay()
    assert (value(bench), revoked) == (older, [])
    assert left(bench) > 5


def test_a_revoke_that_fails_does_not_disturb_the_publish(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(task_id: str) -> None:
        raise OSError("no broadcast")

    monkeypatch.setattr(bench.app.control, "revoke", fail)
    task = declare(bench, lock_on_duplicate="replace")
    task.delay()
    task.delay()
    assert "could not be revoked: OSError" in caplog.text
    assert bench.queue_length == 2


def test_a_task_that_waits_is_not_replaced_for_some_of_its_keys(bench: Bench) -> None:
    waiting = owned_by(bench, "other", Role.QUEUED).owner
    bench.send(declare(bench, lock_key=["k", "j"], lock_on_duplicate="replace"))
    assert value(bench) == waiting


def test_the_older_one_is_ended_without_its_body_though_the_newer_one_has_finished(
    bench: Bench, mode: str, revoked: list[str]
) -> None:
    runs: list[int] = []
    task = declare(
        bench,
        lambda self, number: runs.append(number),
        lock_mode=mode,
        lock_on_duplicate="replace",
    )
    older, newer = bench.send(task, 1), bench.send(task, 2)
    bench.run(newer)
    assert bench.run(older).state == "IGNORED"
    assert runs == [2]
    assert bench.app.AsyncResult(older["id"]).state == "REVOKED"


def test_the_older_one_does_not_wait_to_learn_that_it_was_replaced(
    bench: Bench, mode: str, revoked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = declare(bench, lock_mode=mode, lock_wait=30, lock_on_duplicate="replace")
    older = bench.send(task)
    bench.send(task)

    def refuse(seconds: float) -> None:
        raise AssertionError(f"it waits for {seconds} s")

    monkeypatch.setattr(client_for(bench.app).transport, "sleep", refuse)
    assert bench.run(older).state == "IGNORED"


def test_a_second_delivery_of_a_replaced_one_is_ignored(
    bench: Bench, revoked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    task = declare(bench, lock_on_duplicate="replace")
    older = bench.send(task)
    bench.send(task)
    monkeypatch.setattr(
        task.backend, "mark_as_revoked", lambda task_id, *args, **kwargs: told.append(task_id)
    )
    assert [bench.run(older).state for _ in range(2)] == ["IGNORED", "IGNORED"]
    assert told == [older["id"]]


def test_the_older_one_runs_if_the_newer_one_cannot_be_sent(
    bench: Bench, revoked: list[str], break_broker: Callable[[], None]
) -> None:
    task = declare(bench, lock_on_duplicate="replace")
    older = bench.send(task)
    break_broker()
    with pytest.raises(OperationalError):
        task.delay()
    assert bench.run(older).value == "ran"


def test_one_that_is_replaced_while_it_waits_for_another_stands_back(
    bench: Bench, revoked: list[str]
) -> None:
    options = {"lock_mode": "until_and_while_executing", "lock_wait": 0.001}
    policies = {"lock_on_duplicate": "replace", "lock_on_conflict": "raise"}

    def replace(state: Any) -> None:
        if not newer:
            newer.append(task.delay().id)

    newer: list[str] = []
    retry = Retrying(after=replace)
    task = declare(bench, lock_retry=retry, **policies, **options)
    owned_by(bench, "other")
    older = bench.send(task)
    assert bench.run(older).state == "IGNORED"
    assert bench.app.AsyncResult(older["id"]).state == "REVOKED"


def test_what_was_replaced_is_remembered_for_longer_than_it_may_wait(
    bench: Bench, revoked: list[str]
) -> None:
    task = declare(bench, lock_on_duplicate="replace", lock_queue_ttl=50, lock_dedupe_window=40)
    older = bench.send(task)
    task.delay()
    assert role(bench, mark(bench, older)) is Role.REPLACED
    assert 85 < left(bench, mark(bench, older)) <= 95


def test_the_older_one_is_put_back_until_the_newer_one_is_out(
    bench: Bench, revoked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[str] = []
    task = declare(bench, lock_on_duplicate="replace")
    older = bench.send(task)
    send = bench.app.amqp.send_task_message

    def look(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(bench.app.amqp, "send_task_message", send)
        states.append(bench.run(older).state)
        return send(*args, **kwargs)

    monkeypatch.setattr(bench.app.amqp, "send_task_message", look)
    task.delay()
    assert states == ["IGNORED"]
    again = bench.receive()
    assert again["id"] == older["id"]
    assert bench.run(again).state == "IGNORED"
    assert bench.app.AsyncResult(older["id"]).state == "REVOKED"


def test_the_older_one_runs_where_the_newer_one_cannot_be_sent_and_is_slow_to_give_back(
    bench: Bench, revoked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = declare(bench, lock_on_duplicate="replace")
    older = bench.send(task)
    reservations = client_of(client_for(bench.app))
    cancel, states = type(reservations).cancel, list[str]()

    def look(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_given_back = cancel(self, *args, **kwargs)
        if not states:
            states.append(bench.run(older).state)
        return is_given_back

    def refuse(*_args: Any, **_kwargs: Any) -> None:
        monkeypatch.undo()
        monkeypatch.setattr(type(reservations), "cancel", look)
        raise OperationalError("no broker")

    monkeypatch.setattr(bench.app.amqp, "send_task_message", refuse)
    with pytest.raises(OperationalError):
        task.delay()
    assert states == ["IGNORED"]
    assert bench.run(bench.receive()).state == "SUCCESS"
    assert revoked == []


def test_what_has_been_replaced_is_not_replaced_again(bench: Bench, revoked: list[str]) -> None:
    task = declare(bench, lambda self, number: number, lock_on_duplicate="replace")
    requests = [bench.send(task, number) for number in range(3)]
    states = [bench.run(request).state for request in reversed(requests)]
    assert states == ["SUCCESS", "IGNORED", "IGNORED"]


@pytest.mark.parametrize("mode", ["until_executing", "until_and_while_executing"])
def test_the_newer_one_gets_the_lock_that_a_worker_is_about_to_give_up(
    bench: Bench, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unique_publish, "RELEASE_WAIT", 60)
    task = declare(bench, lock_mode=mode, lock_on_duplicate="replace")
    place = QUEUE if mode == "until_and_while_executing" else KEY
    lease = owned_by(bench, "starting", place=place)
    sent: list[Any] = []
    caller = threading.Thread(target=lambda: sent.append(task.delay()))
    caller.start()
    lease.release()
    caller.join()
    named = holder(bench, place)
    assert named is not None
    assert named.task_id == sent[0].id


def test_a_call_that_finds_its_older_one_begun_gets_the_lock_when_that_gives_it_up(
    bench: Bench, revoked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unique_publish, "RELEASE_WAIT", 60)
    task = declare(bench, lock_mode="until_executing", lock_on_duplicate="replace")
    lock = Envelope.read(bench.send(task)).reservation
    redlock = client_for(bench.app)
    reserve = client_of(redlock).reserve
    giving_up: list[threading.Thread] = []

    def begin_first(*args: Any, previous: str = "", **options: Any) -> Any:
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

    monkeypatch.setattr(client_of(redlock), "reserve", begin_first)
    newer = task.delay()
    giving_up[0].join()
    named = holder(bench)
    assert named is not None
    assert named.task_id == newer.id


def test_the_oldest_one_does_not_run_after_the_newest_while_the_publisher_between_is_paused(
    bench: Bench, revoked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    task = declare(bench, lambda self, number: runs.append(number), lock_on_duplicate="replace")
    oldest = bench.send(task, 1)
    reservations = client_of(client_for(bench.app))
    reserve = reservations.reserve

    def pause_afterwards(*args: Any, **options: Any) -> Any:
        reserved = reserve(*args, **options)
        if options["previous"]:
            monkeypatch.setattr(reservations, "reserve", reserve)
            bench.run(bench.send(task, 3))
            bench.run(oldest)
        return reserved

    monkeypatch.setattr(reservations, "reserve", pause_afterwards)
    task.delay(2)
    assert runs == [3]


@pytest.mark.parametrize("fails", [True, False])
def test_the_oldest_one_does_not_run_where_the_publisher_between_fails_or_dies_after_a_takeover(
    bench: Bench, revoked: list[str], monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    runs: list[int] = []
    task = declare(bench, lambda self, number: runs.append(number), lock_on_duplicate="replace")
    oldest = bench.send(task, 1)
    newest: list[Any] = []
    send = bench.app.amqp.send_task_message

    def take_over_and_fail(*args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(bench.app.amqp, "send_task_message", send)
        newest.append(bench.send(task, 3))
        if not fails:  # it says nothing to the nodes any more
            monkeypatch.setattr(client_of(client_for(bench.app)), "cancel", lambda *_, **__: True)
        raise OperationalError("no broker")

    monkeypatch.setattr(bench.app.amqp, "send_task_message", take_over_and_fail)
    with pytest.raises(OperationalError):
        task.delay(2)
    bench.run(newest[0])
    bench.run(oldest)
    assert runs == [3]
    assert bench.app.AsyncResult(oldest["id"]).state == "REVOKED"


def test_a_call_that_fails_leaves_the_oldest_ones_marker_to_the_newest(
    bench: Bench, revoked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    task = declare(bench, lambda self, number: runs.append(number), lock_on_duplicate="replace")
    oldest = bench.send(task, 1)
    client = client_of(client_for(bench.app))
    send, relabel, late = bench.app.amqp.send_task_message, client.relabel, list[Any]()

    def take_over_and_fail(*args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(bench.app.amqp, "send_task_message", send)
        monkeypatch.setattr(client, "relabel", lambda *given: late.append(given))
        task.delay(3)
        raise OperationalError("no broker")

    monkeypatch.setattr(bench.app.amqp, "send_task_message", take_over_and_fail)
    with pytest.raises(OperationalError):
        task.delay(2)
    for given in late:
        relabel(*given)
    bench.run(bench.receive())
    bench.run(oldest)
    assert runs == [3]
