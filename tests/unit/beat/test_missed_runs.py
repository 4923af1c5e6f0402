"""How the log tells of due times for which nothing was sent."""

from __future__ import annotations

from datetime import timedelta

import pytest

from celery_redlock.beat.unsent import MAX_MISSED_COUNT, QUIET_FOR, MissedRuns
from celery_redlock.transport.memory import VirtualTime
from tests.unit.beat.world import START, MakeWorld


@pytest.fixture
def time() -> VirtualTime:
    return VirtualTime()


@pytest.fixture
def missed(time: VirtualTime) -> MissedRuns:
    return MissedRuns(time.now)


def note(missed: MissedRuns, entry: str = "e", count: int = 1, minute: int = 0) -> None:
    first = START + timedelta(minutes=minute)
    missed.note(entry, count, first, first + timedelta(minutes=1))


def test_nothing_is_said_of_nothing(missed: MissedRuns, caplog: pytest.LogCaptureFixture) -> None:
    missed.report(at_once=True)
    assert caplog.messages == []


def test_what_comes_together_is_told_soon_with_a_line_for_each_entry(
    missed: MissedRuns, time: VirtualTime, caplog: pytest.LogCaptureFixture
) -> None:
    note(missed, "a", 2)
    note(missed, "b", MAX_MISSED_COUNT)
    missed.report()
    assert caplog.messages == []
    time.sleep(1)
    missed.report()
    assert caplog.messages == [
        f"Entry {entry!r} has no record of being sent for {told} of its due times between "
        f"{START} and {START + timedelta(minutes=1)}: no beat led, the beat was late, or the "
        "sends could not be recorded. The last send covers them"
        for entry, told in (("a", "2"), ("b", f"{MAX_MISSED_COUNT} or more"))
    ]


def test_what_comes_later_is_summed_up_until_a_minute_is_over(
    missed: MissedRuns, time: VirtualTime, caplog: pytest.LogCaptureFixture
) -> None:
    for minute in range(3):
        note(missed, count=minute + 1, minute=minute)
        time.sleep(1)
        missed.report()
    assert len(caplog.messages) == 1
    time.sleep(QUIET_FOR)
    missed.report()
    missed.report()
    (_, later) = caplog.messages
    assert "for 5 of its due times between" in later
    assert f"{START + timedelta(minutes=1)} and {START + timedelta(minutes=3)}" in later


def test_many_entries_share_a_line(missed: MissedRuns, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(20):
        note(missed, f"e{number}", number + 1)
    missed.report(at_once=True)
    (line,) = caplog.messages
    assert line.startswith("20 entries have no record of being sent for 210 of their due times")
    assert line.endswith(
        "(most: 'e19' for 20, 'e18' for 19, 'e17' for 18, 'e16' for 17, 'e15' for 16)"
    )


def test_a_beat_that_is_always_late_says_so_once_a_minute(make_world: MakeWorld) -> None:
    world = make_world(schedule={f"e{n}": {"task": "job", "schedule": 1.0} for n in range(20)})

    def slow(task: str) -> None:
        world.time.sleep(0.15)  # the next of an entry comes after three seconds

    world.publish_fails_with = slow
    a = world.beat("a")
    world.run(120)
    assert len(world.logged("no record of being sent")) == 2
    world.stop(a)
    assert len(world.logged("no record of being sent")) == 3
