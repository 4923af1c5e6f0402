"""What a schedule's run does that finds another at work."""

from __future__ import annotations

import _thread
import threading
import time
from typing import Any

import pytest

from celery_redlock import Redlock
from celery_redlock.errors import LeaseLost, LockContended, QuorumUnavailable
from celery_redlock.signals import counters, task_replaced
from celery_redlock.tasks.messages.owners import Role, label_for
from tests.support.tasks import Bench
from tests.support.ticks import mark, send_tick, send_unnamed, tick, tick_now
from tests.support.unique import KEY, declare, free, holder, left, role, value
from tests.support.waiting import wait_until

COMPANION = f"redlock-meta:running:{KEY}"
POLICIES = ("forbid", "queue", "replace", "allow")


def job(bench: Bench, overlap: str, body: Any = None, **options: Any) -> Any:
    options = {"lock_mode": "while_executing", "lock_overlap": overlap, **options}
    return declare(bench, body, **options)


def occupy(bench: Bench, **facts: Any) -> Any:
    """Hold the lock as another run does."""
    label = label_for(Role.RUNNING, "other", **facts)
    return bench.elsewhere.take(["k"], [COMPANION], ttl=60, label=label)


def occupy_for(bench: Bench, seconds: float) -> Any:
    """Hold the lock as the run for the tick does that was due so many seconds from now."""
    return occupy(bench, due_us=tick(seconds).due_us)


def next_one(bench: Bench) -> str | None:
    """Return the id of the task that is to have the lock next, if one has asked for it."""
    found = holder(bench, COMPANION)
    return found.task_id if found is not None and found.role is Role.QUEUED else None


def told(before: dict[str, int]) -> dict[str, int]:
    after = counters()
    return {kind: after[kind] - before[kind] for kind in after if after[kind] != before[kind]}


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
    assert "is skipped and ends with lock_skip_result 'skipped'" in caplog.text


def test_no_copy_of_a_forbidden_tick_runs_later(bench: Bench) -> None:
    task = job(bench, "forbid")
    other = occupy(bench)
    first, copy = (send_tick(bench, task, tick()) for _ in range(2))
    bench.run(first)
    other.release()
    assert role(bench, mark(bench, tick())) is Role.FINISHED
    assert bench.run(copy).state == "IGNORED"


def test_the_ticks_of_a_schedule_exclude_each_other_though_they_share_one_task_id(
    bench: Bench,
) -> None:
    task = job(bench, "forbid", lock_skip_result="skipped")
    label = label_for(Role.RUNNING, "nightly", due_us=tick(-60).due_us)
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

    monkeypatch.setattr(Redlock, "take", split)
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
    "goes_on", [{"retries": 1}, {"replaced_task_nesting": 1}], ids=["a retry", "a replacement"]
)
def test_what_goes_on_with_a_run_follows_the_other_policy(
    bench: Bench, goes_on: dict[str, int]
) -> None:
    task = job(bench, "forbid")
    occupy(bench)
    assert bench.run(send_unnamed(bench, task), **goes_on).state == "RETRY"


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
    assert role(bench, mark(bench, tick())) is Role.FINISHED


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


def test_a_run_that_may_be_replaced_takes_a_companion_with_its_key(bench: Bench) -> None:
    task = job(bench, "replace", lambda self: [value(bench), value(bench, COMPANION)])
    key, companion = bench.call(task).value
    assert key == companion
    assert (value(bench), value(bench, COMPANION)) == (None, None)


@pytest.mark.parametrize("overlap", ["forbid", "queue"])
def test_a_run_that_may_not_be_replaced_takes_none(bench: Bench, overlap: str) -> None:
    assert bench.call(job(bench, overlap, lambda self: value(bench, COMPANION))).value is None


def test_a_newer_run_asks_the_older_and_leaves_its_lock_alone(bench: Bench) -> None:
    other = occupy_for(bench, -60)
    before = counters()
    request = send_tick(bench, job(bench, "replace"), tick())
    assert bench.run(request).state == "RETRY"
    assert (value(bench), next_one(bench)) == (other.owner, request["id"])
    assert told(before) == {"task_replaced": 1, "task_requeued": 1}


def test_an_older_run_is_told_of_once_however_often_it_is_asked(bench: Bench) -> None:
    heard: list[tuple[str, str]] = []

    def hear(task_id: str, by: str, **_: Any) -> None:
        heard.append((task_id, by))

    occupy_for(bench, -60)
    request = send_tick(bench, job(bench, "replace"), tick())
    task_replaced.connect(hear, weak=False)
    try:
        for _ in range(3):
            bench.run(request)
    finally:
        task_replaced.disconnect(hear)
    assert heard == [("other", request["id"])]


def test_a_newer_run_runs_when_the_older_has_ended(bench: Bench) -> None:
    other = occupy_for(bench, -60)
    bench.run(send_tick(bench, job(bench, "replace"), tick()))
    other.release()
    assert bench.run(bench.receive()).value == "ran"


def test_an_older_run_gives_way_to_a_newer_and_does_not_run_later(bench: Bench) -> None:
    other = occupy_for(bench, 60)
    task = job(bench, "replace", lock_skip_result="skipped")
    first, copy = (send_tick(bench, task, tick()) for _ in range(2))
    assert bench.run(first).value == "skipped"
    assert value(bench, COMPANION) == other.owner
    other.release()
    assert bench.run(copy).state == "IGNORED"


def test_of_two_runs_of_one_moment_neither_replaces_the_other(bench: Bench) -> None:
    other = occupy_for(bench, 0)
    request = send_tick(bench, job(bench, "replace"), tick(entry="daily"))
    assert bench.run(request).state == "RETRY"
    assert value(bench, COMPANION) == other.owner


def test_a_tick_replaces_the_run_of_a_program_that_began_before_it(bench: Bench) -> None:
    occupy(bench)
    request = send_tick(bench, job(bench, "replace"), tick_now(60))
    assert bench.run(request).state == "RETRY"
    assert next_one(bench) == request["id"]


def test_a_tick_waits_for_the_run_of_a_program_that_began_after_it(bench: Bench) -> None:
    other = occupy(bench)
    request = send_tick(bench, job(bench, "replace"), tick_now(-60))
    assert bench.run(request).state == "RETRY"
    assert value(bench, COMPANION) == other.owner


def test_a_run_of_a_beat_that_names_no_ticks_replaces_what_it_finds(bench: Bench) -> None:
    occupy(bench)
    request = send_unnamed(bench, job(bench, "replace"))
    assert bench.run(request).state == "RETRY"
    assert next_one(bench) == request["id"]


def test_it_replaces_nothing_that_began_while_it_waited(bench: Bench) -> None:
    other = occupy(bench)
    bench.run(send_unnamed(bench, job(bench, "replace")))
    other.release()
    free(bench, COMPANION)
    newer = occupy(bench)
    assert bench.run(bench.receive()).state == "RETRY"
    assert value(bench, COMPANION) == newer.owner


def test_a_run_waits_for_a_lock_that_no_task_of_ours_has(bench: Bench) -> None:
    bench.elsewhere.acquire("k", ttl=60)
    assert bench.run(send_tick(bench, job(bench, "replace"), tick())).state == "RETRY"


def test_an_older_run_that_waits_is_skipped_once_a_newer_is_the_next(bench: Bench) -> None:
    other = occupy_for(bench, -60)
    task = job(bench, "replace", lock_skip_result="skipped")
    bench.run(send_tick(bench, task, tick()))
    older = bench.receive()
    newer = send_tick(bench, task, tick(60))
    assert bench.run(newer).state == "RETRY"
    newer = bench.receive()
    other.release()
    assert [bench.run(request).value for request in (older, newer)] == ["skipped", "ran"]


def test_a_newer_run_goes_before_one_that_waits_and_takes_a_free_lock_at_once(
    bench: Bench,
) -> None:
    other = occupy_for(bench, -60)
    task = job(bench, "replace")
    bench.run(send_tick(bench, task, tick()))
    bench.receive()
    other.release()
    before = counters()
    assert bench.run(send_tick(bench, task, tick(60))).value == "ran"
    assert told(before) == {"task_replaced": 1}


def test_a_run_of_a_program_waits_for_the_next_one(bench: Bench) -> None:
    other = occupy_for(bench, -60)
    task = job(bench, "replace", lock_on_conflict="raise")
    bench.run(send_tick(bench, task, tick()))
    again = bench.receive()
    other.release()
    assert bench.call(task).state == "FAILURE"
    assert bench.run(again).value == "ran"


def test_the_turn_of_a_run_that_never_comes_back_ends(bench: Bench) -> None:
    other = occupy_for(bench, -60)
    bench.run(send_tick(bench, job(bench, "replace", lock_ttl=7), tick()))
    other.release()
    assert 0 < left(bench, COMPANION) <= 2 * 7


def test_a_run_that_comes_back_keeps_its_turn(bench: Bench) -> None:
    occupy_for(bench, -60)
    task = job(bench, "replace", lock_ttl=7)
    bench.run(send_tick(bench, task, tick()))
    bench.node.state.keys[COMPANION].expires_at -= 13_000
    again = bench.receive()
    assert bench.run(again).state == "RETRY"
    assert (next_one(bench), left(bench, COMPANION) > 10) == (again["id"], True)


@pytest.mark.parametrize("ended", ["skipped", "given up"])
def test_a_run_that_ends_without_the_lock_gives_its_turn_up(bench: Bench, ended: str) -> None:
    occupy_for(bench, -60)
    task = job(bench, "replace", lock_give_up_after=50, lock_starting_deadline=100)
    bench.run(send_tick(bench, task, tick_now()))
    again = bench.receive()
    if ended == "skipped":
        again["redlock"]["tick"]["due"] -= 1000
    else:
        again["redlock"]["first_seen"] -= 100
    assert bench.run(again).state == ("SUCCESS" if ended == "skipped" else "FAILURE")
    wait_until(lambda: value(bench, COMPANION) is None, message="the turn stayed")


def test_a_run_that_cannot_ask_now_waits_and_asks_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise QuorumUnavailable("no")

    occupy_for(bench, -60)
    request = send_tick(bench, job(bench, "replace"), tick())
    with monkeypatch.context() as patch:
        patch.setattr(Redlock, "reserve", refuse)
        assert bench.run(request).state == "RETRY"
    assert next_one(bench) is None
    again = bench.receive()
    assert bench.run(again).state == "RETRY"
    assert next_one(bench) == request["id"]


def test_of_several_holders_each_is_asked(bench: Bench) -> None:
    task = job(bench, "replace", lock_key=["k", "l"])
    one = occupy_for(bench, -60)
    bench.run(send_tick(bench, task, tick()))
    one.release()
    label = label_for(Role.RUNNING, "another", due_us=tick(-60).due_us)
    beside = "redlock-meta:running:redlock:l"
    another = bench.elsewhere.take(["l"], [beside], ttl=60, label=label)
    assert bench.run(bench.receive()).state == "RETRY"
    assert value(bench, beside) is None
    another.release()
    assert bench.run(bench.receive()).value == "ran"


def test_who_waits_for_the_lock_of_an_older_run_is_told(bench: Bench) -> None:
    other = occupy_for(bench, -60)
    task = job(bench, "replace")
    request = send_tick(bench, task, tick())
    bench.run(request)
    assert task.lock_holder().task_id == "other"
    other.release()
    waits = task.lock_holder()
    assert (waits.task_id, waits.state) == (request["id"], "queued")


@pytest.mark.usefixtures("longest_delay")
def test_a_run_that_asked_comes_back_when_the_other_can_have_noticed(bench: Bench) -> None:
    occupy_for(bench, -60)
    request = send_tick(bench, job(bench, "replace", lock_ttl=12), tick())
    request["redlock"].update(first_seen=time.time(), hops=8, retries=0)
    outcome = bench.run(request)
    assert outcome.value.when == 4


def in_another_thread(call: Any) -> None:
    # One call into the interpreter: `Thread.start` is Python code of the body, which the loss may
    # strike half done.
    _thread.start_new_thread(call, ())


class Stage:
    """A run that is replaced by a newer one while its body goes on."""

    def __init__(self, bench: Bench, **options: Any) -> None:
        self.bench = bench
        self.caught: list[LeaseLost] = []
        self.options = {"lock_ttl": 0.6, **options}

    def declare(self, unwind: Any, **options: Any) -> Any:
        def body(self_: Any) -> str:
            try:
                in_another_thread(lambda: states.append(self.bench.run(newer).state))
                wait_until(lambda: False)
            except LeaseLost as exc:
                self.caught.append(exc)
                wait_until(lambda: states == ["RETRY"])
                return str(unwind(self_))
            return "not told"

        states: list[str] = []
        task = job(self.bench, "replace", body, **{**self.options, **options})
        newer = send_tick(self.bench, task, tick(60))
        return send_tick(self.bench, task, tick())


def test_a_run_that_is_replaced_is_interrupted_and_told_why(bench: Bench) -> None:
    stage = Stage(bench)
    outcome = bench.run(stage.declare(lambda self: "stopped"))
    assert outcome.value == "stopped"
    (loss,) = stage.caught
    assert loss.reason == "a newer run asked this one to stop"


def test_a_run_that_is_replaced_keeps_its_lock_until_it_has_ended(bench: Bench) -> None:
    def unwind(self: Any) -> bool:
        # Longer than its lease would have lasted.
        deadline = time.monotonic() + 4 * 0.6
        held = []
        while time.monotonic() < deadline:
            held.append(role(bench) is Role.RUNNING)
            time.sleep(0.01)
        return all(held)

    assert bench.run(Stage(bench).declare(unwind)).value == "True"
    assert value(bench) is None


def test_a_run_that_is_replaced_keeps_its_mark_until_it_has_ended(bench: Bench) -> None:
    def unwind(self: Any) -> Any:
        time.sleep(2 * 0.6)
        return role(bench, mark(bench, tick()))

    assert bench.run(Stage(bench).declare(unwind)).value == "running"
    assert role(bench, mark(bench, tick())) is Role.FINISHED


def test_a_run_that_is_replaced_knows_that_its_lease_is_over(bench: Bench) -> None:
    assert bench.run(Stage(bench).declare(lambda self: self.lease.is_valid)).value == "False"


def test_a_run_that_is_replaced_does_not_warn_of_a_second_body(bench: Bench, caplog: Any) -> None:
    bench.run(Stage(bench).declare(lambda self: "stopped"))
    assert "ended without its lock" not in caplog.text


def test_a_run_that_ends_just_when_it_is_asked_does_not_warn(bench: Bench, caplog: Any) -> None:
    def body(self: Any) -> str:
        bench.run(newer)
        return next_one(bench) or "not asked"

    task = job(bench, "replace", body)
    newer = send_tick(bench, task, tick(60))
    assert bench.run(send_tick(bench, task, tick())).value == newer["id"]
    assert "ended without its lock" not in caplog.text


def test_a_flagged_run_that_is_replaced_keeps_its_lock_while_it_goes_on(bench: Bench) -> None:
    def body(self: Any) -> Any:
        in_another_thread(lambda: bench.run(newer))
        wait_until(lambda: self.lease.lost)
        time.sleep(2 * 0.6)
        return [self.lease.is_valid, role(bench)]

    task = job(bench, "replace", body, lock_ttl=0.6, lock_on_lost="flag")
    newer = send_tick(bench, task, tick(60))
    assert bench.run(send_tick(bench, task, tick())).value == [False, "running"]


def test_a_run_whose_lock_is_taken_away_is_not_told_of_a_newer_run(bench: Bench) -> None:
    caught: list[LeaseLost] = []

    def body(self: Any) -> None:
        free(bench)
        try:
            wait_until(lambda: False)
        except LeaseLost as exc:
            caught.append(exc)

    bench.run(send_tick(bench, job(bench, "replace", body, lock_ttl=0.6), tick()))
    assert [loss.reason for loss in caught] == ["a quorum of nodes no longer has it"]


def test_the_minimum_hold_of_a_replaced_run_keeps_the_newer_away(bench: Bench) -> None:
    bench.run(Stage(bench, lock_at_least_for=50).declare(lambda self: "stopped"))
    assert role(bench) is Role.RUNNING
    assert bench.run(bench.receive()).state == "RETRY"


def test_so_does_that_of_a_run_of_a_program(bench: Bench) -> None:
    def body(self: Any) -> str:
        try:
            in_another_thread(lambda: states.append(bench.run(newer).state))
            wait_until(lambda: False)
        except LeaseLost:
            wait_until(lambda: states == ["RETRY"])
            return "stopped"
        return "not told"

    states: list[str] = []
    task = job(bench, "replace", body, lock_ttl=0.6, lock_at_least_for=50)
    request = bench.send(task)
    newer = send_tick(bench, task, tick_now(60))
    assert bench.run(request).value == "stopped"
    assert (role(bench), 45 < left(bench) <= 50) == (Role.RUNNING, True)


def test_the_owner_of_the_data_frees_the_companion_too(bench: Bench) -> None:
    occupy(bench)
    task = job(bench, "replace")
    assert task.release_lock()
    assert (value(bench), value(bench, COMPANION)) == (None, None)


def test_what_is_in_the_way_is_named_by_its_key(bench: Bench) -> None:
    errors: list[LockContended] = []

    def policy(task: Any, error: LockContended) -> str:
        errors.append(error)
        return "skip"

    other = occupy(bench)
    bench.call(job(bench, "replace", lock_on_conflict=policy))
    (error,) = errors
    assert (error.key, error.holder, error.keys) == ("k", other.owner, ("k",))
    assert "Lock 'k' is held by" in str(error)


def test_with_several_keys_what_is_asked_is_who_has_them(bench: Bench) -> None:
    task = job(bench, "replace", lock_key=["k", "l"])
    occupy_for(bench, -60)
    free_one = "redlock-meta:running:redlock:l"
    bench.elsewhere.take(["other"], [free_one], ttl=60)
    request = send_tick(bench, task, tick())
    bench.run(request)
    assert next_one(bench) == request["id"]
    assert role(bench, free_one) is not Role.QUEUED


def test_beats_with_skewed_clocks_run_a_short_job_once_within_its_minimum_hold(
    bench: Bench,
) -> None:
    task = job(bench, "forbid", lock_at_least_for=20, lock_skip_result="skipped")
    assert [bench.run(send_unnamed(bench, task)).value for _ in range(2)] == ["ran", "skipped"]
