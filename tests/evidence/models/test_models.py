"""
The explorer itself: it finds what is broken, says how, and finds nothing where nothing is.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from celery_redlock.protocol.timing import quorum
from evidence.models import examine
from evidence.models.calling import Calls
from evidence.models.calls import CallSetting
from evidence.models.configs import ALL
from evidence.models.explorer import explore
from evidence.models.identifying import Identifying, IdentitySetting
from evidence.models.pauses import PAUSES, PauseSetting
from evidence.models.waiters import Waiters, WaiterSetting
from evidence.planted.planting import ROOT, command_of, planted
from evidence.planted.registry import FAULTS

pytestmark = pytest.mark.full


@pytest.mark.parametrize("name", ["trust-second", "fence-poison", "leaders-forget"])
def test_a_small_setting_is_explored_to_the_end_without_a_violation(name: str) -> None:
    outcome = examine.examine(name, 200_000)
    assert outcome.exhausted
    assert not outcome.violation
    assert not outcome.missing


def test_exploring_twice_finds_the_same_states() -> None:
    first = examine.examine("trust-second", 5_000)
    again = examine.examine("trust-second", 5_000)
    assert (first.states, first.moves) == (again.states, again.moves)


def test_a_planted_fault_is_told_by_a_trace_that_a_person_can_follow() -> None:
    fault = next(fault for fault in FAULTS if fault.name == "counters do not count")
    with planted(fault) as home:
        done = subprocess.run(
            [sys.executable, "-m", *command_of(fault)],
            cwd=home,
            env={"PYTHONPATH": str(home)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    violation = next(index for index, line in enumerate(lines) if line.startswith("VIOLATION"))
    trace = lines[violation + 1 : -1]
    assert trace[0].endswith("starts")
    assert any("runs A's acquire: granted 1" in line for line in trace)
    assert "holds with token" in trace[-1]


def test_a_call_that_takes_the_key_of_a_revoked_message_over_does_not_do_its_work() -> None:
    setting = ALL["calls-until_executed-mixed"]
    assert isinstance(setting, CallSetting)
    model = Calls(setting)
    state = model.initial()
    for step in (
        *("A: reserves", "A: sent with the lock", "A: revoked", "B: sent as a duplicate"),
        *("C: sees that an older one waits", "C: takes the lock over", "C: sent with the lock"),
        *("C: is looked at", "C: begins", "C: stores its result", "C: lets go"),
        *("B: is looked at", "B: begins"),
    ):
        state = next(found for found, (text, _), _ in model.moves(state) if text == step)


def test_without_a_look_after_a_wake_up_messages_that_are_lost_keep_another_asleep() -> None:
    setting = WaiterSetting(name="unchecked", messages=3, losses=1)
    outcome = explore(Waiters(setting), "unchecked", 200_000)
    assert outcome.violation == "a message waits for a free key"


def test_a_backlog_that_is_freed_within_a_longest_lease_hides_a_promotion() -> None:
    setting = IdentitySetting(name="freed early", max_ttl=2, backlog_ttl=1)
    found = explore(Identifying(setting), setting.name, 200_000)
    assert found.violation == "a node votes that has lost the key of a valid lease"
    assert found.trace[-2:] == ["its backlog is freed", "an acquire: granted"]


def test_every_setting_has_a_name_of_its_own_and_says_what_it_must_reach() -> None:
    assert all(setting.expects for setting in ALL.values())
    assert len(ALL) == len({setting.name for setting in ALL.values()})


@pytest.mark.parametrize("setting", PAUSES, ids=lambda setting: setting.name)
def test_a_quorum_of_the_nodes_keeps_the_pause_in_each_setting(setting: PauseSetting) -> None:
    assert setting.silent + setting.forgets < quorum(setting.nodes)


def test_what_is_explored_is_the_shipped_code() -> None:
    assert examine.__file__.startswith(str(ROOT))
