"""Sending a unique task: the lock that is taken for it, and what its message carries."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Task

from celery_redlock import RedlockTask, is_duplicate
from celery_redlock.tasks.message.envelope import HEADER, Envelope
from celery_redlock.tasks.message.owner_label import parse_owner
from celery_redlock.tasks.rules.facts import Role
from tests.support.tasks import Bench
from tests.support.unique import KEY, declare, value


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
