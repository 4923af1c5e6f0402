"""What a scheduled run does that finds another at work, and is skipped or waits."""

from __future__ import annotations

import threading

from celery_redlock.tasks.message.owner_label import label_for
from celery_redlock.tasks.rules.facts import Role
from tests.support.tasks import Bench
from tests.support.ticks import mark, send_tick, send_unnamed, tick
from tests.support.unique import role
from tests.unit.tasks.run.newest.company import job, occupy


def test_no_copy_of_a_forbidden_tick_runs_later(bench: Bench) -> None:
    task = job(bench, "skip")
    other = occupy(bench)
    first, copy = (send_tick(bench, task, tick()) for _ in range(2))
    bench.run(first)
    other.release()
    assert role(bench, mark(bench, tick())) is Role.SKIPPED
    assert bench.run(copy).state == "IGNORED"


def test_the_ticks_of_a_schedule_exclude_each_other_though_they_share_one_task_id(
    bench: Bench,
) -> None:
    task = job(bench, "skip", lock_skip_result="skipped")
    label = label_for(Role.RUNNING, "nightly", task="job", due_us=tick(-60).due_us)
    bench.elsewhere.acquire("k", ttl=60, label=label)
    request = send_tick(bench, task, tick(), task_id="nightly")
    assert bench.run(request).value == "skipped"


def test_a_run_is_not_forbidden_before_lock_wait_is_over(bench: Bench) -> None:
    task = job(bench, "skip", lock_wait=30)
    other = occupy(bench)
    request = send_tick(bench, task, tick())
    threading.Timer(0.1, other.release).start()
    assert bench.run(request).value == "ran"


def test_beats_that_name_no_ticks_start_runs_too(bench: Bench) -> None:
    task = job(bench, "skip", lock_skip_result="skipped")
    occupy(bench)
    assert bench.run(send_unnamed(bench, task)).value == "skipped"


def test_a_queued_run_gives_up_in_the_end(bench: Bench) -> None:
    task = job(bench, "requeue", lock_give_up_after=50)
    occupy(bench)
    bench.run(send_tick(bench, task, tick()))
    again = bench.receive()
    again["redlock"]["first_seen"] -= 100
    assert bench.run(again).state == "FAILURE"
    assert role(bench, mark(bench, tick())) is Role.SKIPPED


def test_beats_with_skewed_clocks_run_a_short_job_once_within_its_minimum_hold(
    bench: Bench,
) -> None:
    task = job(bench, "skip", lock_at_least_for=20, lock_skip_result="skipped")
    assert [bench.run(send_unnamed(bench, task)).value for _ in range(2)] == ["ran", "skipped"]
