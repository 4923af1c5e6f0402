"""A lost lease interrupts the application's code, and never what Celery does in the body."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cases import first_of
from tests.support.greenlets import PATCH, run_with_greenlets
from tests.support.waiting import TIMEOUT

ROOT = Path(__file__).resolve().parents[4]


GREEN = """
from celery_redlock.errors import LeaseLost
from tests.support.tasks import Bench
import time

bench = Bench()
send, sent = bench.app.amqp.send_task_message, []

def slowly(*args, **kwargs):
    if task.request.id:
        task.lease.mark_lost()
        time.sleep(0.2)
    sent.append(send(*args, **kwargs))

bench.app.amqp.send_task_message = slowly

def body(self, how):
    if how == "retry":
        raise self.retry(countdown=0)
    if how == "autoretry":
        raise ValueError("try again")
    self.app.send_task("elsewhere")
    time.sleep(30)

task = bench.task(body, bind=True, lock_key="{how}", autoretry_for=(ValueError,))
outcomes = []
def run(how):
    request = bench.send(task, how)
    before = len(sent)
    outcome = bench.run(request)
    while bench.queue_length:
        bench.receive()
    outcomes.append((outcome.state, len(sent) - before))
for how in ("retry", "autoretry", "send"):
    join(spawn(run, how))
print(outcomes)
"""


@pytest.mark.parametrize("library", first_of(PATCH))
def test_a_greenlet_is_not_interrupted_in_what_celery_sends(library: str) -> None:
    sent = run_with_greenlets(library, GREEN)
    assert sent == "[('RETRY', 1), ('RETRY', 1), ('FAILURE', 1)]\n"


def test_the_garbage_collector_does_not_stop_the_process_while_threads_are_looked_at() -> None:
    program = Path(__file__).with_name("collecting.py")
    subprocess.run([sys.executable, program], cwd=ROOT, check=True, timeout=TIMEOUT)
