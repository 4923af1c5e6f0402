"""Locks of tasks in a list: what each call has at each time of its life."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from celery_redlock import current_lease, is_duplicate
from celery_redlock.admin.lock_list import LockEntry, as_data, list_locks, show_lock, task_names
from celery_redlock.admin.lock_release import release_lock, release_task
from tests.support.tasks import Bench
from tests.support.unique import WINDOW, declare


def listed(bench: Bench) -> list[LockEntry]:
    return list(list_locks(bench.elsewhere, names=task_names(bench.app.tasks)))


def test_a_message_in_the_queue_is_queued(bench: Bench) -> None:
    sent = declare(bench, lock_queue_ttl=90).delay()
    (entry,) = listed(bench)
    assert (entry.key, entry.state, entry.task, entry.task_id) == ("k", "queued", "job", sent.id)
    assert 0 < entry.expires_in <= 90
    assert entry.token is None


def test_a_body_is_running_and_has_its_token(bench: Bench) -> None:
    seen: list[LockEntry] = []

    def body(self: Any) -> int:
        seen.extend(listed(bench))
        return current_lease().fencing_token

    outcome = bench.call(declare(bench, body))
    (entry,) = seen
    assert (entry.state, entry.task, entry.host) == ("running", "job", "worker@bench")
    assert entry.token == outcome.value
    assert listed(bench) == []


def test_a_window_is_finished(bench: Bench) -> None:
    bench.call(declare(bench, lock_mode="until_expired"))
    (entry,) = listed(bench)
    assert (entry.key, entry.state, entry.task) == ("k", "finished", "job")
    assert 0 < entry.expires_in <= WINDOW


def test_a_queued_call_beside_a_running_one_has_a_row_of_its_own(bench: Bench) -> None:
    seen: list[LockEntry] = []

    def body(self: Any) -> None:
        task.delay()
        seen.extend(listed(bench))

    task = declare(bench, body, lock_mode="until_and_while_executing")
    bench.call(task)
    assert {(entry.key, entry.state) for entry in seen} == {("k", "running"), ("k", "queued")}


def test_queued_messages_with_a_limit_have_their_slots(bench: Bench) -> None:
    task = declare(bench, lock_limit=2)
    ids = {task.delay().id for _ in range(2)}
    found = listed(bench)
    assert {entry.task_id for entry in found} == ids
    assert {(entry.key, entry.slot, entry.state) for entry in found} == {
        ("k", 0, "queued"),
        ("k", 1, "queued"),
    }


def test_a_rate_lists_what_it_has_counted(bench: Bench) -> None:
    bench.call(declare(bench, lock_rate="2/h"))
    (entry,) = listed(bench)
    assert (entry.key, entry.is_rate, entry.task) == ("k", True, "job")


def test_a_message_that_waits_is_counted_and_shown(bench: Bench) -> None:
    bench.elsewhere.acquire("k", ttl=60)
    request = bench.send(declare(bench, lock_mode="while_executing", lock_on_conflict="requeue"))
    assert bench.run(request).state == "RETRY"
    (entry,) = show_lock(bench.elsewhere, "k")
    assert entry.waiting == 1
    assert [waiter.name for waiter in entry.waiters] == [request["id"]]


def test_a_task_has_its_name_if_it_is_in_the_list_of_names(bench: Bench) -> None:
    declare(bench).delay()
    for names, found in ((["other"], None), (["job"], "job")):
        (entry,) = list_locks(bench.elsewhere, names=task_names(names))
        assert entry.task == found


def test_an_entry_as_data_is_json(bench: Bench) -> None:
    sent = declare(bench).delay()
    (entry,) = listed(bench)
    data = as_data(entry)
    assert json.loads(json.dumps(data)) == data
    assert (data["key"], data["state"], data["task_id"]) == ("k", "queued", sent.id)
    assert (data["task"], data["votes"], data["slot"]) == ("job", 1, None)
    assert data["since"].endswith("+00:00")


def test_after_a_purge_the_next_call_is_sent(bench: Bench) -> None:
    task = declare(bench)
    task.delay()
    bench.receive()
    assert is_duplicate(task.delay())
    (gone,) = release_task(bench.elsewhere, "job")
    assert gone.state == "queued"
    assert not is_duplicate(task.delay())


def test_a_release_is_logged_with_the_holder(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    sent = declare(bench).delay()
    with caplog.at_level(logging.WARNING, "celery_redlock.admin"):
        release_lock(bench.elsewhere, "k")
    assert "'k' is taken away from" in caplog.text
    assert sent.id in caplog.text


@pytest.mark.parametrize("by_key", [True, False])
def test_a_message_that_is_revoked_does_not_run_when_it_is_delivered_again(
    bench: Bench, by_key: bool
) -> None:
    task = declare(bench)
    first = bench.send(task)
    if by_key:
        (gone,) = release_lock(bench.elsewhere, "k", revoke=True)
    else:
        (gone,) = release_task(bench.elsewhere, "job", revoke=True)
    second = bench.send(task)
    assert gone.task_id == first["id"]
    assert [bench.run(request).state for request in (second, first)] == ["SUCCESS", "IGNORED"]
    assert bench.app.AsyncResult(first["id"]).state == "REVOKED"


def test_a_message_that_is_not_revoked_runs_when_it_is_delivered_again(bench: Bench) -> None:
    task = declare(bench)
    first = bench.send(task)
    list(release_task(bench.elsewhere, "job"))
    second = bench.send(task)
    assert [bench.run(request).state for request in (second, first)] == ["SUCCESS", "SUCCESS"]


def test_a_body_that_has_begun_is_not_revoked(bench: Bench) -> None:
    seen: list[LockEntry] = []

    def body(self: Any) -> None:
        seen.extend(release_task(bench.elsewhere, "job", revoke=True))

    assert bench.call(declare(bench, body)).state == "SUCCESS"
    assert seen == []


def test_one_of_several_calls_is_revoked_by_its_id(bench: Bench) -> None:
    task = declare(bench, lock_limit=2)
    first, second = task.delay(), task.delay()
    (gone,) = release_lock(bench.elsewhere, "k", revoke=True, task_id=first.id)
    assert gone.task_id == first.id
    assert [entry.task_id for entry in listed(bench)] == [second.id]
    (gone,) = release_task(bench.elsewhere, "job", revoke=True, task_id=second.id)
    assert gone.task_id == second.id


def test_all_keys_of_a_revoked_message_are_released_by_its_task(bench: Bench) -> None:
    declare(bench, lock_key=["k", "j"]).delay()
    assert len(list(release_task(bench.elsewhere, "job", revoke=True))) == 2
    assert listed(bench) == []
