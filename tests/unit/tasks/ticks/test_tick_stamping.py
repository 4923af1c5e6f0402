"""What is in the messages of a beat, and what is left as it was."""

from __future__ import annotations

import copy
import logging
from collections import namedtuple
from datetime import datetime, timedelta
from typing import Any

import pytest
from celery import Task, signals
from celery.beat import BeatLazyFunc, ScheduleEntry
from celery.schedules import crontab, schedule

from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.message.tick import LONGEST_INTERVAL
from celery_redlock.tasks.ticks.tick_context import pending_tick
from celery_redlock.tasks.ticks.tick_stamping import TickScheduler, is_protected
from tests.support.tasks import Bench
from tests.unit.schedules.test_due_times import Aligned, Broken, SinceLastRun
from tests.unit.tasks.ticks.simulated import MINUTE, START, at, beat, messages_of, one_message


def test_a_message_carries_its_entry_and_when_that_was_due() -> None:
    tick = one_message(beat()).tick
    assert (tick.entry, tick.due_at, tick.token) == ("e", MINUTE, None)


@pytest.mark.parametrize(
    ("conf", "name"), [({}, "beat:{app}"), ({"redlock_beat_key": "ours"}, "ours")]
)
def test_a_message_carries_the_name_of_the_schedule(conf: dict[str, Any], name: str) -> None:
    made = beat(conf=conf)
    assert one_message(made).tick.schedule == name.format(app=made.app.main)


@pytest.mark.parametrize("found", [60, crontab()])
def test_a_message_tells_when_its_entry_is_due_next(found: Any) -> None:
    tick = one_message(beat({"schedule": found})).tick
    assert tick.until == tick.due + 60


def test_a_message_of_a_leap_day_tells_the_next_tick_a_year_later() -> None:
    leap_day = crontab(minute=1, hour=0, day_of_month=29, month_of_year=2)
    made = beat({"schedule": leap_day})
    made.clock.moment = at("2028-02-29T00:00:30")
    tick = one_message(made).tick
    assert tick.until == tick.due + LONGEST_INTERVAL


def test_a_message_has_a_nonce_beside_its_tick() -> None:
    first, second = beat().run(120)
    nonces = [Envelope.read(sent.headers).nonce for sent in (first, second)]
    assert len(set(nonces) - {""}) == 2


def test_headers_and_options_of_the_entry_stay_and_are_not_written_into() -> None:
    options = {"headers": {"mine": 1}, "expires": 30, "priority": 3}
    made = beat({"options": copy.deepcopy(options)})
    sent = one_message(made)
    assert (sent.headers["mine"], sent.headers["expires"] is not None) == (1, True)
    assert made.scheduler.schedule["e"].options == options


def test_a_header_of_ours_that_the_entry_has_is_added_to() -> None:
    header = {"nonce": "n", "handovers": 2}
    made = beat({"options": {"headers": {"redlock": header.copy()}}})
    sent = one_message(made)
    assert (sent.header["nonce"], sent.header["handovers"], sent.tick.entry) == ("n", 2, "e")
    assert made.scheduler.schedule["e"].options["headers"]["redlock"] == header


def test_a_header_of_ours_that_makes_no_sense_is_replaced() -> None:
    sent = one_message(beat({"options": {"headers": {"redlock": "?"}}}))
    assert sent.tick.entry == "e"


def test_arguments_and_the_line_in_the_log_are_celerys(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    sent = one_message(beat({"args": (1, 2), "kwargs": {"n": 3}}))
    assert list(sent.body[0]) == [1, 2]
    assert sent.body[1] == {"n": 3}
    assert "Scheduler: Sending due task e (job)" in caplog.text


def test_a_lazy_argument_is_evaluated_for_each_message() -> None:
    counted = iter(range(10))
    made = beat({"args": (BeatLazyFunc(lambda: next(counted)),)})
    assert [sent.body[0] for sent in made.run(120)] == [[0], [1]]


def test_what_a_lazy_argument_sends_itself_gets_no_tick() -> None:
    made = beat()
    entry = made.app.conf.beat_schedule["e"]
    entry["args"] = (BeatLazyFunc(lambda: made.job.delay().id),)
    entry["kwargs"] = {"more": BeatLazyFunc(lambda: made.job.delay().id)}
    assert [sent.tick is not None for sent in made.run(60)] == [False, False, True]


def test_a_lazy_argument_that_fails_is_reported_as_ever(caplog: pytest.LogCaptureFixture) -> None:
    made = beat({"args": (BeatLazyFunc(lambda: 1 / 0),)})
    assert made.run(120) == []
    assert "Couldn't apply scheduled task e: division by zero" in caplog.text


def test_what_a_receiver_of_the_publish_sends_gets_no_tick() -> None:
    made = beat()
    other = made.task("other")

    def send_other(sender: str, **_: Any) -> None:
        if sender == "job":
            other.delay()

    with made.watched():
        signals.before_task_publish.connect(send_other, weak=False, dispatch_uid="other")
        try:
            ticks = {sent.task: sent.tick for sent in made.run(60)}
        finally:
            signals.before_task_publish.disconnect(dispatch_uid="other")
    assert (ticks["other"], ticks["job"].entry) == (None, "e")


def test_what_is_sent_between_ticks_gets_none() -> None:
    made = beat()
    made.run(60)
    with made.watched():
        made.job.delay()
    assert made.sent[-1].tick is None


def test_a_send_by_hand_gets_no_tick() -> None:
    made = beat()
    scheduler = made.open()
    with made.watched():
        scheduler.apply_async(scheduler.schedule["e"])
    assert made.sent[0].tick is None


def test_a_tick_that_comes_while_its_entry_is_taken_counts_for_the_one_before_too() -> None:
    made = beat()
    take = made.open().reserve

    def slow(entry: Any) -> Any:
        made.clock.advance(60)
        made.scheduler.reserve = take
        return take(entry)

    made.scheduler.reserve = slow
    assert made.ticks(180) == ["2026-03-10 12:02:00", "2026-03-10 12:03:00"]


def test_of_beats_that_meet_at_a_publish_time_lock_one_sends_with_the_lock() -> None:
    conf = {"redlock_nodes": ["memory://met"], "redlock_beat_key": "ours"}
    made = [beat({"task": "unique"}, conf=conf) for _ in range(3)]
    for each in made:
        each.task("unique", lock_mode="until_executed")
    sent = [one_message(each) for each in made]
    locks = [Envelope.read(one.headers).reservation is not None for one in sent]
    assert (locks, {one.tick for one in sent}) == ([True, False, False], {sent[0].tick})


def test_an_entry_that_is_added_while_the_beat_runs_is_stamped_and_put_on_the_grid() -> None:
    made = beat()
    made.run(60)
    made.clock.advance(0.3)
    made.scheduler.add(name="new", task="job", schedule=schedule(7))
    new = [sent.tick for sent in made.run(21) if sent.tick.entry == "new"]
    assert [tick.due % 7 for tick in new] == [0, 0, 0]


def test_an_interval_that_changes_while_the_beat_runs_is_on_its_new_grid() -> None:
    made = beat()
    made.run(61)
    made.scheduler.update_from_dict({"e": {"task": "job", "schedule": 7}})
    assert [sent.tick.due % 7 for sent in made.run(21)] == [0, 0, 0]


def test_entries_that_are_not_protected_stay_as_they_are() -> None:
    made = beat(protect=lambda entry: False)
    (sent,) = made.run(61)
    assert (sent.header, type(made.scheduler.schedule["e"].schedule)) == (None, schedule)
    assert sent.at >= START + timedelta(seconds=60)


def test_a_scheduler_of_the_same_class_that_was_not_given_stays_as_it_is() -> None:
    beat().run(1)
    other = beat(with_ticks=False)
    assert [sent.header for sent in other.run(61)] == [None]


def test_nothing_is_kept_of_entries_that_have_left_the_schedule() -> None:
    made = beat()
    made.run(60)

    def kept() -> set[Any]:
        ticks = made.scheduler.redlock_ticks
        known = {name for name, _ in ticks._stamped}
        return known | set(ticks._last_sent) | set(ticks._reserved_at) | ticks._warned

    for number in range(3):
        made.scheduler.schedule.clear()
        made.scheduler.add(name=f"e{number}", task="job", schedule=SinceLastRun())
        made.run(60)
    assert kept() == {"e2"}


# What fails


@pytest.mark.parametrize("found", [Broken, SinceLastRun])
def test_an_entry_whose_tick_cannot_be_told_is_sent_without_it_and_reported_once(
    found: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Due(found):
        def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
            return self.now() - last_run_at > timedelta(seconds=10), 10

    made = beat({"schedule": Due()})
    sent = made.run(60)
    assert len(sent) >= 4
    assert {message.header is None for message in sent} == {True}
    (warning,) = messages_of(caplog)
    assert "Entry 'e' of the schedule is sent without its tick" in warning


def test_an_interval_that_has_no_grid_is_celerys_problem(caplog: pytest.LogCaptureFixture) -> None:
    class Strange(schedule):  # type: ignore[misc]  # Celery is untyped
        nowfun = _app = None

        def __init__(self) -> None: ...

        @property
        def run_every(self) -> timedelta:
            raise RuntimeError("broken interval")

        def __repr__(self) -> str:
            return "<strange>"

    made = beat()
    scheduler = made.open()
    scheduler.schedule["e"].schedule = Strange()
    entry = scheduler.reserve(scheduler.schedule["e"])
    assert type(entry.schedule) is Strange
    assert "broken interval" in messages_of(caplog)[0]


def test_an_entry_whose_name_is_a_number_is_called_by_its_text() -> None:
    assert one_message(beat(name=7)).tick.entry == "7"


def test_a_schedule_that_is_not_due_again_may_say_so_with_infinity() -> None:
    class ClockedDueTimes(Aligned):
        def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
            due = self.now() >= MINUTE > last_run_at
            return due, float("inf") if due else 1.0

    assert len(beat({"schedule": ClockedDueTimes()}).run(600)) == 1


def test_an_entry_that_cannot_be_copied_is_sent_as_it_is() -> None:
    made = beat()
    made.open()
    entry = made.scheduler.schedule["e"]
    made.clock.moment = MINUTE
    slotted = namedtuple("Slotted", "name task args kwargs options schedule last_run_at")
    bare = slotted("e", "job", (), {}, {}, entry.schedule, START)
    with made.watched():
        made.scheduler.apply_async(bare, advance=False)
    assert made.sent[0].tick.due_at == MINUTE


# Which entries are protected


@pytest.mark.parametrize(
    ("task", "conf", "expected"),
    [
        ("locked", {}, True),
        ("plain", {}, False),
        ("bare", {}, False),
        ("unknown", {}, True),
        ("plain", {"redlock_dedupe": True}, True),
        ("plain", {"redlock_tasks": {"pl*": {"lock_key": True}}}, True),
        ("celery.backend_cleanup", {"redlock_tasks": {"*": {"lock_key": True}}}, False),
    ],
)
def test_an_entry_is_protected_if_its_task_locks_where_it_runs(
    task: str, conf: dict[str, Any], expected: bool
) -> None:
    bench = Bench(**conf)
    bench.task(lambda: None, name="locked", lock_key="k")
    bench.task(lambda: None, name="plain", base=Task)
    bench.task(lambda: None, name="bare")
    assert is_protected(bench.app, task) is expected
    bench.close()


def test_the_entry_that_is_taken_next_is_celerys_own() -> None:
    made = beat()
    made.run(60)
    after = made.scheduler.schedule["e"]
    assert type(after) is ScheduleEntry
    assert (after.total_run_count, after.last_run_at >= MINUTE) == (1, True)


def test_a_crontab_is_left_as_it_is() -> None:
    made = beat({"schedule": crontab()})
    assert one_message(made).tick.due_at == MINUTE
    assert type(made.scheduler.schedule["e"].schedule) is crontab


class Adding(TickScheduler):
    """A scheduler that chooses the ids of its messages."""

    def redlock_options(self, sending: Any, entry: Any, tick: Any) -> Any:
        return {"task_id": f"{entry.name}-{0 if tick is None else tick.due_us}"}


def failing(*_: Any) -> Any:
    raise RuntimeError("broken hook")


def test_an_entry_of_which_nobody_knows_whether_it_is_protected_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sent = beat(protect=failing).run(121)
    assert [message.header for message in sent] == [None, None]
    assert len(messages_of(caplog)) == 1


def test_options_go_before_the_entrys_own_and_are_not_kept() -> None:
    made = beat({"options": {"task_id": "own", "priority": 3}}, mixin=Adding)
    assert one_message(made).headers["id"] == f"e-{int(MINUTE.timestamp())}000000"
    assert made.scheduler.schedule["e"].options["task_id"] == "own"


@pytest.mark.parametrize(("own", "expected"), [({}, True), ({"task_id": "own"}, False)])
def test_a_publish_can_tell_an_id_that_was_chosen_for_the_tick_from_the_entrys_own(
    own: dict[str, Any], expected: bool
) -> None:
    seen = []

    class Asking(Task):  # type: ignore[misc]  # Celery is untyped
        abstract = True

        def apply_async(self, *args: Any, **options: Any) -> Any:
            seen.append((pending_tick(self.name).owns_id, pending_tick("other")))
            return super().apply_async(*args, **options)

    made = beat({"task": "asks", "options": own}, mixin=Adding)
    made.task("asks", base=Asking)
    made.run(60)
    assert seen == [(expected, None)]
    assert pending_tick("asks") is None


def test_a_task_that_sends_no_message_of_its_name_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Elsewhere(Task):  # type: ignore[misc]  # Celery is untyped
        abstract = True

        def apply_async(self, *args: Any, **options: Any) -> Any:
            return self.app.send_task("other")

    made = beat({"task": "proxy"})
    made.task("proxy", base=Elsewhere)
    assert [sent.tick for sent in made.run(180)] == [None, None, None]
    (warning,) = messages_of(caplog)
    assert "no message of proxy was sent" in warning


@pytest.mark.parametrize("conf", [{"task_always_eager": True}, {"redlock_nodes": ["memory://dup"]}])
def test_a_task_that_needs_no_message_is_not_reported(
    conf: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    made = beat({"task": "unique"}, conf=conf)
    made.task("unique", lock_mode="until_executed")
    assert len(made.run(180)) <= 1
    assert messages_of(caplog) == []
