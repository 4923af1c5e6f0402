"""Ticks that come too late, meet another run, or are of a superseded leader."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from celery_redlock.core import Register, client_of
from celery_redlock.signals import tick_missed, tick_superseded
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.message.tick import Tick
from celery_redlock.tasks.rules.facts import Role
from celery_redlock.tasks.ticks.entry_state import EntryState
from tests.support.events import counters, listening
from tests.support.tasks import Bench
from tests.support.ticks import ENTRY, START, mark, send_tick, send_unnamed, tick, tick_now
from tests.support.unique import owned_by, role, value
from tests.unit.tasks.jobs import ALL_MODES, job, redelivered

SCHEDULE = "beat:app"


def late(seconds: float) -> Tick:
    """Return a tick that was due so many seconds ago."""
    return tick_now(-seconds)


@pytest.fixture
def heard() -> Iterator[list[dict[str, Any]]]:
    with listening(tick_superseded, tick_missed) as heard:
        yield heard


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_tick_after_its_deadline_is_skipped(bench: Bench, mode: str) -> None:
    task = job(bench, lock_mode=mode, lock_starting_deadline=60, lock_skip_result="skipped")
    before = counters()["tick_missed"]
    outcome = bench.run(send_tick(bench, task, late(61)))
    assert (outcome.state, outcome.value) == ("SUCCESS", "skipped")
    assert counters()["tick_missed"] - before == 1
    assert value(bench) is None


def test_a_tick_before_its_deadline_runs(bench: Bench) -> None:
    task = job(bench, lock_starting_deadline=3600)
    assert bench.run(send_tick(bench, task, late(60))).value == "ran"


def test_a_message_without_a_tick_has_no_deadline(bench: Bench) -> None:
    assert bench.call(job(bench, lock_starting_deadline=1)).value == "ran"


def test_a_missed_tick_says_what_was_missed_and_by_how_much(
    bench: Bench, heard: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    task = job(bench, lock_starting_deadline=60)
    what = late(100)
    request = send_tick(bench, task, what)
    bench.run(request)
    (news,) = heard
    assert (news["sender"], news["task_id"], news["tick"]) == (task, request["id"], what)
    assert 40 <= news["late_by"] < 40 + 30
    assert f"Entry '{ENTRY}' was due at {what.due_at.isoformat()}" in caplog.text


def test_a_tick_whose_other_message_runs_is_not_missed(
    bench: Bench, heard: list[dict[str, Any]]
) -> None:
    states: list[str] = []
    options = {"acks_late": True, "lock_starting_deadline": 60}
    task = job(bench, lambda self: states.append(bench.run(copy).state), **options)
    what = late(100)
    first, copy = (send_tick(bench, task, what) for _ in range(2))
    bench.run(redelivered(first))
    assert (states, heard) == (["IGNORED"], [])


def test_a_tick_that_waited_past_its_deadline_is_skipped(bench: Bench) -> None:
    other = bench.elsewhere.acquire("k", ttl=60)
    task = job(bench, lock_starting_deadline=60, lock_skip_result="skipped")
    bench.run(send_tick(bench, task, tick_now()))
    other.release()
    again = bench.receive()
    again["redlock"]["tick"]["due"] -= 100
    assert bench.run(again).value == "skipped"


@pytest.mark.usefixtures("longest_delay")
def test_a_tick_comes_back_before_its_deadline(bench: Bench) -> None:
    bench.elsewhere.acquire("k", ttl=60)
    task = job(bench, lock_starting_deadline=100)
    request = send_tick(bench, task, late(80))
    request["redlock"].update(first_seen=time.time(), requeues=10, retries=0)
    assert bench.run(request).value.when < 20


def test_a_tick_waits_in_its_process_until_its_deadline(bench: Bench, waits: list[float]) -> None:
    task = job(bench, lock_starting_deadline=100, lock_wait=600)
    bench.run(send_tick(bench, task, late(80)))
    assert 0 < waits[0] <= 20


@pytest.mark.parametrize(("acks_late", "value_of"), [(True, "ran"), (False, "skipped")])
def test_a_tick_whose_body_may_have_begun_has_no_deadline_any_more(
    bench: Bench, acks_late: bool, value_of: str
) -> None:
    task = job(bench, acks_late=acks_late, lock_starting_deadline=60, lock_skip_result="skipped")
    assert bench.run(redelivered(send_tick(bench, task, late(100)))).value == value_of


def test_it_has_none_either_when_it_has_waited_since(bench: Bench) -> None:
    other = bench.elsewhere.acquire("k", ttl=60)
    task = job(bench, acks_late=True, lock_starting_deadline=60)
    assert bench.run(redelivered(send_tick(bench, task, late(100)))).state == "RETRY"
    other.release()
    assert bench.run(bench.receive()).value == "ran"


def test_a_missed_tick_ends_without_a_mark_where_no_quorum_answers(bench: Bench) -> None:
    task = job(bench, lock_starting_deadline=60, lock_skip_result="skipped")
    request = send_tick(bench, task, late(100))
    bench.node.kill()
    assert bench.run(request).value == "skipped"


def led(bench: Bench, *leaders: int) -> None:
    """Have leaders with these tokens record one tick each, a minute apart, from now on."""
    register = Register(client_of(bench.elsewhere), SCHEDULE)
    state = EntryState(due=START - 60, ran_at=START, count=0, token=(*leaders, 0)[0])
    for minute, token in enumerate(leaders):
        state = state.after(START + 60 * minute, START, token=token)
        register.write(token, {ENTRY: (state.due_us, state.write())})


def sent(bench: Bench, task: Any, token: int, seconds: float = 0.0, **facts: Any) -> Any:
    what = tick(seconds, schedule=SCHEDULE, token=token, **facts)
    return bench.run(send_tick(bench, task, what))


def test_a_tick_that_a_superseded_leader_sends_is_dropped(
    bench: Bench, heard: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    led(bench, 5, 8)
    task = job(bench)
    assert sent(bench, task, 5, seconds=60).state == "IGNORED"
    (news,) = heard
    assert (news["signal"], news["tick"].token, news["newest"]) == (tick_superseded, 5, 8)
    assert "(token 5) that had been superseded (token 8)" in caplog.text


def test_the_newer_leaders_message_of_a_dropped_tick_runs(bench: Bench) -> None:
    led(bench, 5, 8)
    task = job(bench)
    sent(bench, task, 5, seconds=60)
    assert sent(bench, task, 8, seconds=60).value == "ran"


@pytest.mark.parametrize(
    ("leaders", "facts"),
    [((5, 8), {}), ((5, 8), {"seconds": 60, "entry": "daily"}), ((), {})],
    ids=["that was sent before the takeover", "of an entry nobody recorded", "that nobody leads"],
)
def test_a_leaders_tick_runs(bench: Bench, leaders: tuple[int, ...], facts: Any) -> None:
    led(bench, *leaders)
    assert sent(bench, job(bench), 5, **facts).value == "ran"


def test_a_tick_that_brought_a_lock_is_not_dropped(bench: Bench) -> None:
    led(bench, 5, 8)
    task = job(bench, lock_mode="until_executed")
    request = send_tick(bench, task, tick(60, schedule=SCHEDULE, token=5))
    assert Envelope.read(request).reservation is not None
    assert bench.run(request).value == "ran"


def test_a_tick_waits_where_nobody_can_say_whether_it_is_late(bench: Bench) -> None:
    task = job(bench)
    request = send_tick(bench, task, tick(schedule=SCHEDULE, token=5))
    bench.node.kill()
    assert bench.run(request).state == "RETRY"


def test_a_tick_of_a_plain_beat_is_not_looked_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Register, "read", lambda self, names: 1 / 0)
    assert bench.run(send_tick(bench, job(bench), tick())).value == "ran"


def test_no_copy_of_a_forbidden_tick_runs_later(bench: Bench) -> None:
    task = job(bench, lock_on_conflict="skip")
    other = owned_by(bench, "other")
    first, copy = (send_tick(bench, task, tick()) for _ in range(2))
    bench.run(first)
    other.release()
    assert role(bench, mark(bench, tick())) is Role.SKIPPED
    assert bench.run(copy).state == "IGNORED"


def test_the_ticks_of_a_schedule_exclude_each_other_though_they_share_one_task_id(
    bench: Bench,
) -> None:
    task = job(bench, lock_on_conflict="skip", lock_skip_result="skipped")
    owned_by(bench, "nightly", due_us=tick(-60).due_us)
    request = send_tick(bench, task, tick(), task_id="nightly")
    assert bench.run(request).value == "skipped"


def test_a_run_is_not_forbidden_before_lock_wait_is_over(bench: Bench) -> None:
    task = job(bench, lock_on_conflict="skip", lock_wait=30)
    other = owned_by(bench, "other")
    request = send_tick(bench, task, tick())
    threading.Timer(0.1, other.release).start()
    assert bench.run(request).value == "ran"


def test_beats_that_name_no_ticks_start_runs_too(bench: Bench) -> None:
    task = job(bench, lock_on_conflict="skip", lock_skip_result="skipped")
    owned_by(bench, "other")
    assert bench.run(send_unnamed(bench, task)).value == "skipped"


def test_a_queued_run_gives_up_in_the_end(bench: Bench) -> None:
    task = job(bench, lock_on_conflict="requeue", lock_give_up_after=50)
    owned_by(bench, "other")
    bench.run(send_tick(bench, task, tick()))
    again = bench.receive()
    again["redlock"]["first_seen"] -= 100
    assert bench.run(again).state == "FAILURE"
    assert role(bench, mark(bench, tick())) is Role.SKIPPED


def test_beats_with_skewed_clocks_run_a_short_job_once_within_its_minimum_hold(
    bench: Bench,
) -> None:
    task = job(bench, lock_on_conflict="skip", lock_at_least_for=20, lock_skip_result="skipped")
    assert [bench.run(send_unnamed(bench, task)).value for _ in range(2)] == ["ran", "skipped"]
