"""How often a beat looks at its entries."""

from __future__ import annotations

from typing import Any

import pytest
from celery.schedules import crontab

from tests.unit.schedules.simulated import SimulatedBeat, at


def beat(conf: Any) -> SimulatedBeat:
    return SimulatedBeat(at("2026-03-10T12:00:00.123456"), conf={"beat_schedule": conf})


@pytest.mark.parametrize("found", [0.1, 1 / 3, 7, crontab()])
def test_a_beat_looks_a_few_times_for_each_tick_and_not_in_a_loop(found: Any) -> None:
    one = beat({"e": {"task": "job", "schedule": found}})
    span = 20 * (60 if isinstance(found, crontab) else found)
    sent = one.run(span)
    assert len(sent) >= 19
    assert one.passes <= 4 * len(sent)


def test_an_entry_that_waits_keeps_no_other_from_its_turn() -> None:
    # In the hour that comes again Celery finds the first one due all the time.
    nightly, minutes = crontab("0,30", "2"), 10
    one = beat(
        {
            "a": {"task": "job", "schedule": nightly},
            "b": {"task": "job", "schedule": minutes},
        }
    )
    one.app.conf.timezone = "Europe/Berlin"
    one.clock.moment = at("2026-10-25T01:10:10")
    sent = [message.tick.entry for message in one.run(605)]
    assert sent == ["b"] * 60


def test_an_entry_that_is_not_stamped_is_looked_at_as_ever() -> None:
    stamped, plain = (beat({"e": {"task": "job", "schedule": 7}}) for _ in range(2))
    stamped.hooks = {"protect": lambda entry: False}
    plain.with_ticks = False
    assert [len(stamped.run(30)), stamped.passes] == [len(plain.run(30)), plain.passes]
