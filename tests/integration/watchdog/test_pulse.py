"""The pulse excuses a process that stood still, and nothing in one that ran."""

from __future__ import annotations

from celery_redlock.transport.clock import now
from tests.support.pulse import STALL, Pulse
from tests.support.waiting import wait_until


def test_a_process_that_runs_is_not_excused(pulse: Pulse) -> None:
    wait_until(lambda: not pulse.stood_still(now() - 5 * STALL, now()))


def test_a_process_that_did_not_run_is_excused() -> None:
    with Pulse() as pulse:
        pass
    assert pulse.stood_still(now(), now() + 2 * STALL) > STALL
