"""The line, a design for waiting: its promises hold, and each rule that is taken back is seen."""

from __future__ import annotations

import pytest

from evidence.models.explorer import explore
from evidence.waiting.line import Line
from evidence.waiting.livelock import livelock
from evidence.waiting.settings import LIVELOCKS, RULES, SETTINGS
from evidence.waiting.starving import starved

LIMIT = 30_000
SMALL = ("three-late", "busy-prompt", "both-prompt", "shared-prompt", "down-prompt", "rate-gone")


@pytest.mark.parametrize("name", SMALL)
def test_nobody_that_could_run_is_asleep_after_a_period(name: str) -> None:
    outcome = explore(Line(SETTINGS[name]), name, LIMIT)
    assert outcome.exhausted
    assert not outcome.violation, outcome.trace


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_is_taken_back_is_seen(rule: str) -> None:
    broken = [SETTINGS[name].without(rule) for name in RULES[rule]]
    assert any(explore(Line(setting), setting.name, LIMIT).violation for setting in broken)


def test_workers_that_are_all_busy_would_pass_a_message_on_for_ever() -> None:
    busy = [setting for setting in LIVELOCKS if "all-busy" in setting.name]
    found = {setting.name: livelock(setting, LIMIT) for setting in busy}
    assert found["lock-all-busy-gives-back"].closed
    assert not found["lock-all-busy"].cycles


@pytest.mark.parametrize("fair", [True, False])
def test_one_that_needs_two_keys_starves_beside_others(fair: bool) -> None:
    assert starved(1000, fair=fair)
