"""A unique task whose key is taken when its message arrives."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.errors import DuplicateTask, LockNotAcquired
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.rules.facts import Role
from celery_redlock.transport import WaitingCall
from tests.support.events import counters
from tests.support.tasks import Bench
from tests.support.unique import QUEUE, declare, free, holder, mark, owned_by, role, value
from tests.support.waiting import wait_until
from tests.unit.tasks.jobs import redelivered, sent_without


def test_a_duplicate_that_could_not_be_dropped_is_skipped_as_soon_as_it_arrives(
    bench: Bench, no_waiting: None
) -> None:
    owned_by(bench, "other")
    request = sent_without(bench, lock_wait=30, lock_skip_result="skipped")
    outcome = bench.run(request)
    assert (outcome.state, outcome.value) == ("SUCCESS", "skipped")
    assert role(bench, mark(bench, request)) is Role.FINISHED
    assert holder(bench).task_id == "other"


def test_the_twin_of_a_skipped_message_is_ignored(bench: Bench) -> None:
    other = owned_by(bench, "other")
    request = sent_without(bench)
    bench.run(request)
    other.release()
    assert bench.run(request).state == "IGNORED"


@pytest.mark.parametrize("policy", ["raise", lambda task, error: "raise"])
def test_a_duplicate_fails_on_arrival_where_its_publish_would_have_failed(
    bench: Bench, policy: Any
) -> None:
    owned_by(bench, "other")
    request = sent_without(bench, lock_on_duplicate=policy)
    outcome = bench.run(request)
    assert isinstance(outcome.value, DuplicateTask)
    assert (outcome.value.task_id, outcome.value.result.id) == ("other", "other")
    assert role(bench, mark(bench, request)) is Role.FINISHED


def test_a_task_whose_lock_a_newer_one_took_over_ends_as_revoked(bench: Bench) -> None:
    request = bench.send(declare(bench, lock_on_duplicate="replace"))
    free(bench)
    owned_by(bench, "newer", Role.QUEUED)
    assert bench.run(request).state == "IGNORED"
    assert bench.app.AsyncResult(request["id"]).state == "REVOKED"
    free(bench)
    assert bench.run(request).state == "IGNORED"


def test_a_task_waits_for_another_that_has_only_some_of_its_keys(bench: Bench) -> None:
    other = owned_by(bench, "other")
    request = bench.send(declare(bench, lock_key=["k", "j"]))
    assert bench.run(request).state == "RETRY"
    other.release()
    assert bench.run(bench.receive()).state == "SUCCESS"


@pytest.mark.parametrize("acks_late", [False, True])
def test_a_process_that_ends_while_a_message_waits_leaves_its_lock_only_if_it_comes_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, acks_late: bool
) -> None:
    def terminated(*_: object) -> None:
        raise SystemExit(1)

    options = {"lock_mode": "until_and_while_executing", "lock_wait": 10, "acks_late": acks_late}
    request = bench.send(declare(bench, **options))
    owned_by(bench, "other")
    monkeypatch.setattr(WaitingCall, "sleep", terminated)
    with pytest.raises(SystemExit):
        bench.run(request)
    monkeypatch.undo()
    if acks_late:
        assert role(bench, QUEUE) is Role.QUEUED
    else:
        wait_until(lambda: value(bench, QUEUE) is None, message="the queued lock stayed")


@pytest.mark.parametrize("limit", ["time_limit", "soft_time_limit"])
@pytest.mark.parametrize("said", ["by the task", "by the call"])
def test_waiting_for_the_lock_does_not_use_a_time_limit_up(
    bench: Bench, waits: list[float], limit: str, said: str
) -> None:
    of_task, of_call = ({limit: 2}, {}) if said == "by the task" else ({}, {limit: 2})
    task = declare(bench, lock_wait=60, **of_task)
    task.apply_async(**of_call)
    assert bench.run(bench.receive()).value == "ran"
    assert waits == [1.0]


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({"lock_on_duplicate": "replace"}, {}),
        ({}, {"replaced_task_nesting": 1}),
        ({}, {"parent_id": "other"}),
        ({"lock_on_duplicate": "raise"}, {"parent_id": "other"}),
    ],
    ids=[
        "a newer task, for the one that it replaces",
        "a replacement, which is no duplicate",
        "what a task sends, for its sender",
        "what a task sends, also where duplicates are refused",
    ],
)
def test_a_task_that_runs_is_waited_for_by(
    bench: Bench, options: dict[str, Any], changes: dict[str, Any]
) -> None:
    owned_by(bench, "other")
    assert bench.run(sent_without(bench, **options), **changes).state == "RETRY"


@pytest.mark.parametrize("policy", ["existing", "replace"])
def test_within_the_window_of_a_finished_task_another_is_skipped_at_once(
    bench: Bench, policy: str
) -> None:
    options = {"lock_mode": "until_expired", "lock_on_duplicate": policy, "lock_wait": 60}
    owned_by(bench, "other", Role.FINISHED)
    request = sent_without(bench, lock_give_up_after=60, **options)
    assert bench.run(request).state == "SUCCESS"


def test_a_lock_of_a_stranger_stands_for_no_task_and_is_waited_for(bench: Bench) -> None:
    bench.elsewhere.acquire("k", ttl=60, label="a program of somebody else")
    assert bench.run(sent_without(bench)).state == "RETRY"


def test_an_earlier_run_of_the_same_task_is_waited_for_in_any_mode(bench: Bench) -> None:
    task = bench.task(lambda: "ran", lock_key="k", lock_wait=0, lock_on_conflict="skip")
    request = bench.send(task)
    owned_by(bench, request["id"])
    assert bench.run(request).state == "RETRY"


@pytest.mark.parametrize("mode", ["until_executing", "until_and_while_executing"])
@pytest.mark.parametrize("policy", ["existing", "raise"])
def test_a_retry_is_never_the_duplicate_of_a_task_that_was_queued_meanwhile(
    bench: Bench, mode: str, policy: str
) -> None:
    def body(self: Any) -> str:
        if self.request.retries == 0 and not queued:
            queued.append(self.delay().id)
            raise self.retry(countdown=1)
        return f"{self.request.id} ran"

    queued: list[str] = []
    request = bench.send(declare(bench, body, lock_mode=mode, lock_on_duplicate=policy))
    bench.run(request)
    second, retry = bench.receive(), bench.receive()
    assert [second["id"], retry["id"]] == [queued[0], request["id"]]
    assert bench.run(retry).state == "RETRY"
    assert bench.run(second).value == f"{queued[0]} ran"
    assert bench.run(bench.receive()).value == f"{request['id']} ran"


def test_a_message_whose_worker_was_lost_is_nobodys_duplicate_however_often_it_is_put_back(
    bench: Bench,
) -> None:
    request = redelivered(bench.send(declare(bench, lock_mode="until_executing")))
    free(bench)
    other = owned_by(bench, "queued meanwhile", Role.QUEUED)
    for _ in range(3):
        assert bench.run(request).state == "RETRY"
        request = bench.receive()
    other.release()
    assert bench.run(request).value == "ran"


def test_a_duplicate_stays_one_when_it_is_delivered_again(bench: Bench) -> None:
    owned_by(bench, "other")
    assert bench.run(redelivered(sent_without(bench))).state == "SUCCESS"


def test_a_requeued_message_keeps_its_identity_and_its_lock(bench: Bench) -> None:
    request = bench.send(declare(bench, lock_mode="until_and_while_executing"))
    owned_by(bench, "other")
    bench.run(request)
    before, after = Envelope.read(request), Envelope.read(bench.receive())
    assert (after.nonce, after.reservation) == (before.nonce, before.reservation)
    assert after.wait_history is not None
    assert value(bench, QUEUE) == getattr(before.reservation, "owner", None)


@pytest.mark.parametrize(
    ("policy", "state", "says"),
    [
        ("skip", "SUCCESS", Role.FINISHED),
        ("raise", "FAILURE", Role.FAILED),
        ("reject", "REJECTED", None),
    ],
)
def test_a_queued_lock_is_free_when_the_run_gives_way_to_another(
    bench: Bench, policy: str, state: str, says: Role | None
) -> None:
    options = {"lock_mode": "until_and_while_executing", "lock_on_conflict": policy}
    request = bench.send(declare(bench, acks_late=True, **options))
    owned_by(bench, "other")
    assert bench.run(request).state == state
    wait_until(lambda: value(bench, QUEUE) is None, message="the queued lock stayed")
    assert role(bench, mark(bench, request)) is says


def test_a_task_that_gives_up_leaves_no_lock(bench: Bench) -> None:
    options = {"lock_mode": "until_and_while_executing", "lock_give_up_after": 10}
    request = bench.send(declare(bench, **options))
    owned_by(bench, "other")
    bench.run(request)
    again = bench.receive()
    again["redlock"]["first_seen"] -= 100
    before = counters()["task_gave_up"]
    assert type(bench.run(again).value) is LockNotAcquired
    assert counters()["task_gave_up"] == before + 1
    wait_until(lambda: value(bench, QUEUE) is None, message="the queued lock stayed")


def test_without_a_quorum_a_message_keeps_its_lock_and_runs_later(bench: Bench) -> None:
    request = bench.send(declare(bench))
    bench.node.kill()
    assert bench.run(request).state == "RETRY"
    bench.node.restart(keep_data=True)
    assert bench.run(bench.receive()).value == "ran"
    assert value(bench) is None


def test_a_body_that_ran_unlocked_leaves_no_lock(bench: Bench) -> None:
    def body(self: Any) -> list[Any]:
        bench.node.restart(keep_data=True)
        return [self.lease, self.request.fencing_token, str(role(bench))]

    request = bench.send(declare(bench, body, lock_on_unavailable="run_unlocked"))
    bench.node.kill()
    assert bench.run(request).value == [None, None, "queued"]
    wait_until(lambda: value(bench) is None, message="the lock stayed")


def test_under_apply_a_duplicate_is_skipped(bench: Bench) -> None:
    owned_by(bench, "other")
    assert declare(bench, lock_skip_result="skipped").apply().get() == "skipped"
