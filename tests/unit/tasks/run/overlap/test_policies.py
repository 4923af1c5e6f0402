"""What a schedule's run does that finds another at work, under each policy."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from celery_redlock.core.reservations import Reservations
from celery_redlock.errors import LockContended
from celery_redlock.signals import counters
from celery_redlock.tasks.message.owner_label import Role, label_for
from tests.support.tasks import Bench
from tests.support.ticks import mark, send_tick, send_unnamed, tick
from tests.support.unique import role
from tests.unit.tasks.run.overlap.company import job, occupy, told

POLICIES = ("forbid", "queue", "replace", "allow")


def test_a_forbidden_run_is_skipped_visibly(bench: Bench, caplog: Any) -> None:
    task = job(bench, "forbid", lock_skip_result="skipped")
    occupy(bench)
    caplog.set_level("INFO")
    before = counters()
    outcome = bench.run(send_tick(bench, task, tick()))
    assert (outcome.state, outcome.value, told(before)) == (
        "SUCCESS",
        "skipped",
        {"task_skipped": 1},
    )
    assert "is skipped: Lock 'k' is held by " in caplog.text


def test_no_copy_of_a_forbidden_tick_runs_later(bench: Bench) -> None:
    task = job(bench, "forbid")
    other = occupy(bench)
    first, copy = (send_tick(bench, task, tick()) for _ in range(2))
    bench.run(first)
    other.release()
    assert role(bench, mark(bench, tick())) is Role.SKIPPED
    assert bench.run(copy).state == "IGNORED"


def test_the_ticks_of_a_schedule_exclude_each_other_though_they_share_one_task_id(
    bench: Bench,
) -> None:
    task = job(bench, "forbid", lock_skip_result="skipped")
    label = label_for(Role.RUNNING, "nightly", task="job", due_us=tick(-60).due_us)
    bench.elsewhere.acquire("k", ttl=60, label=label)
    request = send_tick(bench, task, tick(), task_id="nightly")
    assert bench.run(request).value == "skipped"


def test_a_run_is_not_forbidden_before_lock_wait_is_over(bench: Bench) -> None:
    task = job(bench, "forbid", lock_wait=30)
    other = occupy(bench)
    request = send_tick(bench, task, tick())
    threading.Timer(0.1, other.release).start()
    assert bench.run(request).value == "ran"


def test_a_forbidden_run_waits_where_nobody_is_seen_to_have_the_lock(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = job(bench, "forbid")

    def split(*args: Any, **kwargs: Any) -> Any:
        raise LockContended("split", "k", "somebody", 1.0, split=True)

    monkeypatch.setattr(Reservations, "acquire_for_task", split)
    assert bench.run(send_tick(bench, task, tick())).state == "RETRY"


def test_beats_that_name_no_ticks_start_runs_too(bench: Bench) -> None:
    task = job(bench, "forbid", lock_skip_result="skipped")
    occupy(bench)
    assert bench.run(send_unnamed(bench, task)).value == "skipped"


def test_a_header_of_beat_that_is_not_true_is_not_believed(bench: Bench) -> None:
    task = job(bench, "forbid")
    occupy(bench)
    request = bench.send(task, headers={"celery_beat_task": "true"})
    assert bench.run(request).state == "RETRY"


@pytest.mark.parametrize("overlap", POLICIES)
def test_a_run_that_a_program_sent_follows_its_own_policy(bench: Bench, overlap: str) -> None:
    task = job(bench, overlap, lock_on_conflict="raise")
    occupy(bench)
    assert bench.call(task).state == "FAILURE"


@pytest.mark.parametrize(
    "is_continuation",
    [{"retries": 1}, {"replaced_task_nesting": 1}],
    ids=["a retry", "a replacement"],
)
def test_what_goes_on_with_a_run_follows_the_other_policy(
    bench: Bench, is_continuation: dict[str, int]
) -> None:
    task = job(bench, "forbid")
    occupy(bench)
    assert bench.run(send_unnamed(bench, task), **is_continuation).state == "RETRY"


def test_under_apply_no_overlap_policy_counts(bench: Bench) -> None:
    task = job(bench, "forbid", lock_on_conflict="raise")
    occupy(bench)
    assert task.apply(headers={"celery_beat_task": True}).state == "FAILURE"


def test_a_queued_run_waits_in_the_queue(bench: Bench) -> None:
    task = job(bench, "queue", lock_on_conflict="raise")
    other = occupy(bench)
    assert bench.run(send_tick(bench, task, tick())).state == "RETRY"
    other.release()
    assert bench.run(bench.receive()).value == "ran"


def test_a_queued_run_gives_up_in_the_end(bench: Bench) -> None:
    task = job(bench, "queue", lock_give_up_after=50)
    occupy(bench)
    bench.run(send_tick(bench, task, tick()))
    again = bench.receive()
    again["redlock"]["first_seen"] -= 100
    assert bench.run(again).state == "FAILURE"
    assert role(bench, mark(bench, tick())) is Role.SKIPPED


@pytest.mark.parametrize("send", [lambda *of: send_tick(*of, tick()), send_unnamed])
def test_an_allowed_run_takes_no_lock(bench: Bench, send: Any) -> None:
    def body(self: Any) -> Any:
        return [self.lease, self.request.fencing_token, role(bench)]

    assert bench.run(send(bench, job(bench, "allow", body))).value == [None, None, None]


def test_an_allowed_run_goes_on_beside_another(bench: Bench) -> None:
    task = job(bench, "allow")
    other = occupy(bench)
    assert bench.run(send_tick(bench, task, tick())).value == "ran"
    assert other.release()


def test_an_allowed_tick_runs_once(bench: Bench) -> None:
    task = job(bench, "allow")
    copies = [send_tick(bench, task, tick()) for _ in range(2)]
    assert [bench.run(copy).state for copy in copies] == ["SUCCESS", "IGNORED"]


def test_an_allowed_run_needs_no_arguments_for_a_key(bench: Bench) -> None:
    task = job(bench, "allow", lock_key=lambda *args: 1 / 0)
    assert bench.run(send_tick(bench, task, tick())).value == "ran"


def test_beats_with_skewed_clocks_run_a_short_job_once_within_its_minimum_hold(
    bench: Bench,
) -> None:
    task = job(bench, "forbid", lock_at_least_for=20, lock_skip_result="skipped")
    assert [bench.run(send_unnamed(bench, task)).value for _ in range(2)] == ["ran", "skipped"]
