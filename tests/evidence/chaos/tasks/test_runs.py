"""A short run of the task layer; `make chaos` runs it for longer and judges it."""

from __future__ import annotations

import pytest

from evidence.chaos.tasks.kinds import KINDS
from evidence.chaos.tasks.run import run_tasks

pytestmark = pytest.mark.full


def test_a_few_seconds_run_tasks_of_every_mode_and_come_to_a_verdict():
    outcome = run_tasks(1, 4.0)
    assert {body.kind.mode for body in outcome.history.bodies} == {
        kind.mode for kind in KINDS.values()
    }
    assert outcome.history.waiting == set()
    assert outcome.verdict.outcomes
