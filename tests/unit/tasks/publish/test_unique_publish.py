"""Sending a unique task: its lock, what its message carries, and what fails meanwhile."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Task
from kombu.exceptions import EncodeError

from celery_redlock import RedlockTask, is_duplicate
from celery_redlock.errors import LockContended, LockKeyError
from celery_redlock.tasks.message.envelope import HEADER, Envelope
from celery_redlock.tasks.message.owner_label import parse_owner
from celery_redlock.tasks.publish import unique_publish
from celery_redlock.tasks.rules.facts import Role
from tests.support.events import counters
from tests.support.tasks import Bench
from tests.support.unique import KEY, declare, value
from tests.unit.tasks.jobs import before_next, raising


def test_a_task_that_another_thread_is_about_to_bind_is_sent_with_its_lock(bench: Bench) -> None:
    task = declare(bench)
    # Not of the proxy, whose class all tasks share.
    cls = type(task._get_current_object())
    # As Celery shows it to other threads before the one that has made it has bound it.
    cls.redlock_plan = None
    cls.redlock_planned = False
    assert Envelope.read(bench.send(task)).reservation is not None


def test_the_message_carries_the_lock_that_was_taken_for_it(bench: Bench) -> None:
    result = declare(bench).delay()
    message = bench.receive()
    lock = Envelope.read(message).reservation
    assert (lock.node_keys, lock.owner) == ((KEY,), value(bench))
    named = parse_owner(lock.owner)
    assert (named.role, named.task_id, message["id"]) == (Role.QUEUED, result.id, result.id)
    assert not is_duplicate(result)


def test_every_publish_has_a_nonce_of_its_own(bench: Bench) -> None:
    task = bench.task(lambda n: None, name="numbered", lock_key="{n}", lock_mode="until_executed")
    nonces = {Envelope.read(bench.send(task, n)).nonce for n in range(5)}
    assert len(nonces) == 5
    assert "" not in nonces


def test_a_task_that_locks_while_it_executes_takes_nothing_at_publish(bench: Bench) -> None:
    task = declare(bench, lock_mode="while_executing")
    assert HEADER not in (bench.send(task))
    assert not bench.is_held("k")


def test_a_message_that_has_our_header_already_passes_untouched(bench: Bench) -> None:
    task = declare(bench)
    task.delay()
    bench.receive()
    header = Envelope(nonce="again").write()
    again = bench.send(task, headers={HEADER: header}, task_id="again")
    assert again[HEADER] == header


@pytest.mark.parametrize(
    "headers", [{"trace": "abc"}, [("trace", "abc")]], ids=["mapping", "pairs, as Celery takes"]
)
def test_other_headers_stay(bench: Bench, headers: Any) -> None:
    message = bench.send(declare(bench), headers=headers)
    assert message["trace"] == "abc"
    assert Envelope.read(message).reservation is not None


def test_stamps_travel_beside_the_lock(bench: Bench) -> None:
    declare(bench).s().stamp(tenant="acme").apply_async()
    message = bench.receive()
    assert "acme" in message["stamps"]["tenant"]
    assert Envelope.read(message).reservation is not None


def test_an_adopted_class_keeps_its_own_apply_async(bench: Bench) -> None:
    class Theirs(Task):
        abstract = True
        sent = 0

        def apply_async(self, *args: Any, **options: Any) -> Any:
            type(self).sent += 1
            return super().apply_async(*args, **options)

    options = {"lock_key": "k", "lock_mode": "until_executed"}
    bench.app.conf.redlock_tasks = {"theirs": options}
    task = bench.task(lambda: None, base=Theirs, name="theirs")
    bench.app.finalize()
    first, second = task.delay(), task.delay()
    assert (second.id, type(bench.app.tasks["theirs"]).sent) == (first.id, 2)
    assert bench.queue_length == 1


def test_a_task_without_options_is_sent_as_any_other(bench: Bench) -> None:
    task = bench.task(lambda: None, base=RedlockTask)
    assert HEADER not in bench.send(task)


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
    assert "took 11.0 s, longer than the 10 s for which its lock is held" in caplog.text
