"""A task that waits gives its lock to a newer one, where that is the policy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kombu.exceptions import OperationalError

from celery_redlock.tasks.messages.envelope import Envelope
from celery_redlock.tasks.messages.owners import Role
from tests.support.tasks import Bench
from tests.support.unique import declare, holder, left, owned_by, value
from tests.support.waiting import wait_until


@pytest.fixture
def revoked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    revoked: list[str] = []
    monkeypatch.setattr(bench.app.control, "revoke", revoked.append)
    return revoked


def test_a_queued_task_gives_its_lock_to_the_newer_one(bench: Bench, revoked: list[str]) -> None:
    task = declare(bench, lock_on_conflict="replace")
    first, second = task.delay(), task.delay()
    named = holder(bench)
    assert named is not None
    assert (named.task_id, revoked) == (second.id, [first.id])
    assert not getattr(second, "is_duplicate", False)
    bench.receive()
    lock = Envelope.read(bench.receive()).reservation
    assert lock is not None
    assert lock.owner == value(bench)


def test_the_lock_of_the_newer_one_lasts_as_long_as_any(bench: Bench, revoked: list[str]) -> None:
    task = declare(bench, lock_on_conflict="replace")
    task.delay()
    task.delay()
    wait_until(lambda: left(bench) > 3000, message="it was not lengthened")


def test_also_a_newer_one_with_an_id_of_its_own(bench: Bench, revoked: list[str]) -> None:
    task = declare(bench, lock_on_conflict="replace")
    first = task.delay()
    task.apply_async(task_id="mine")
    assert revoked == [first.id]
    named = holder(bench)
    assert named is not None
    assert named.task_id == "mine"


def test_a_message_does_not_replace_an_earlier_one_of_its_own_id(
    bench: Bench, revoked: list[str]
) -> None:
    task = declare(bench, lock_on_conflict="replace")
    task.apply_async(task_id="mine")
    task.apply_async(task_id="mine")
    assert (bench.queue_length, revoked) == (2, [])


@pytest.mark.parametrize("option", ["retries", "replaced_task_nesting"])
def test_work_that_has_begun_does_not_replace_what_was_sent_later(
    bench: Bench, revoked: list[str], option: str
) -> None:
    task = declare(bench, lock_on_conflict="replace")
    task.delay()
    task.apply_async(task_id="begun", **{option: 1})
    assert (bench.queue_length, revoked) == (2, [])


def test_a_running_task_is_left_alone_and_the_newer_one_waits(
    bench: Bench, revoked: list[str]
) -> None:
    running = owned_by(bench, "other").owner
    message = bench.send(declare(bench, lock_on_conflict="replace"))
    assert (value(bench), revoked) == (running, [])
    assert Envelope.read(message).reservation is None


def test_a_finished_tasks_window_cannot_be_replaced(bench: Bench, revoked: list[str]) -> None:
    owned_by(bench, "finished", Role.FINISHED)
    assert declare(bench, lock_on_conflict="replace").delay().id == "finished"
    assert (bench.queue_length, revoked) == (0, [])


def test_the_older_one_gets_its_lock_back_if_the_newer_one_cannot_be_sent(
    bench: Bench, revoked: list[str], break_broker: Callable[[], None]
) -> None:
    task = declare(bench, lock_on_conflict="replace")
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
    task = declare(bench, lock_on_conflict="replace")
    task.delay()
    task.delay()
    assert "could not be revoked: OSError" in caplog.text
    assert bench.queue_length == 2


def test_a_task_that_waits_is_not_replaced_for_some_of_its_keys(bench: Bench) -> None:
    waiting = owned_by(bench, "other", Role.QUEUED).owner
    bench.send(declare(bench, lock_key=["k", "j"], lock_on_conflict="replace"))
    assert value(bench) == waiting
