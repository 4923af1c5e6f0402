"""`LeaseLost` reaches a body, wherever the body runs, and nothing but the body."""

from __future__ import annotations

import pytest

from tests.support.cases import first_of
from tests.support.greenlets import PATCH, run_with_greenlets

GREEN = """
from celery_redlock.errors import LeaseLost
from celery_redlock._greenlets.threads import start_native_thread
from tests.support.tasks import Bench
from tests.support.waiting import TIMEOUT
import threading, time

bench = Bench()
def body(self, how):
    lease = self.lease
    start_native_thread(lease.mark_lost)
    if how == "sleep":
        time.sleep(30)
    until = time.monotonic() + TIMEOUT
    while time.monotonic() < until:
        time.sleep(0.001)

task = bench.task(body, bind=True, lock_key="{how}")
outcomes = []
def run(how):
    outcomes.append(type(bench.run(bench.send(task, how)).value))
for how in ("sleep", "work"):
    join(spawn(run, how))
assert outcomes == [LeaseLost, LeaseLost], outcomes
print("both interrupted")
"""


@pytest.mark.parametrize("library", first_of(PATCH))
def test_a_greenlet_is_interrupted_at_a_switch(library: str) -> None:
    assert run_with_greenlets(library, GREEN) == "both interrupted\n"
