"""How often a beat looks at its entries."""

from __future__ import annotations

from typing import Any

import pytest
from celery.schedules import crontab

from tests.unit.tasks.ticks.simulated import SimulatedBeat, at


def beat(conf: Any) -> SimulatedBeat:
    return SimulatedBeat(at("2026-03-10T12:00:00.123456"), conf={"beat_schedule": conf})


@pytest.mark.parametrize("found", [0.1, 1 / 3, 7, crontab()])
def test_a_beat_looks_a_few_times_for_each_tick_and_not_in_a_loop(found: Any) -> None:
    one = beat({"e": {"task": "job", "schedule": found}})
    span = 20 * (60 if isinstance(found, crontab) else found)
    sent = one.run(span)
    assert len(sent) >= 19
    assert one.passes <= 4 * len(sent)


# In the hour that comes again, and in older versions in the one that is left out, Celery finds a
# nightly entry due all the time.
@pytest.mark.parametrize("start", ["2026-10-25T01:10:10", "2026-03-29T00:55:10"])
def test_an_entry_that_is_put_off_keeps_no_other_from_its_turn(start: str) -> None:
    one = beat(
        {
            "a": {"task": "job", "schedule": crontab("0,30", "2")},
            "b": {"task": "job", "schedule": 10},
        }
    )
    one.app.conf.timezone = "Europe/Berlin"
    one.clock.moment = at(start)
    sent = [message.tick.due_us for message in one.run(1205) if message.tick.entry == "b"]
    assert len(sent) == len(set(sent)) == 120


def test_an_entry_that_is_not_stamped_is_looked_at_as_ever() -> None:
    stamped, plain = (beat({"e": {"task": "job", "schedule": 7}}) for _ in range(2))
    stamped.protect = lambda entry: False
    plain.with_ticks = False
    assert [len(stamped.run(30)), stamped.passes] == [len(plain.run(30)), plain.passes]
