"""Two tasks with one key exclude each other, and no call of one is a duplicate of the other's."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock import is_duplicate
from celery_redlock.tasks.rules.facts import Role
from tests.support.tasks import Bench
from tests.support.ticks import send_tick, tick
from tests.support.unique import KEY, declare, owned_by, value
from tests.unit.tasks.jobs import ALL_MODES, job, start_worker
from tests.unit.tasks.run.newest.company import COMPANION


def asked(task: Any, error: Any) -> str:
    raise AssertionError("it is no duplicate, and nobody is asked")


@pytest.mark.parametrize("first", ALL_MODES)
@pytest.mark.parametrize("policy", ["existing", "raise", "replace", asked])
def test_a_call_is_sent_while_another_tasks_body_runs(
    bench: Bench, first: str, policy: Any
) -> None:
    refund = declare(bench, name="refund", lock_on_duplicate=policy)
    sent: list[Any] = []
    bench.call(declare(bench, lambda self: sent.append(refund.delay()), lock_mode=first))
    assert bench.queue_length == 1
    assert not is_duplicate(sent[0])


def test_a_function_registered_under_two_names_is_two_tasks(bench: Bench) -> None:
    def body() -> str:
        return "ran"

    one, two = (
        bench.task(body, name=name, lock_key="k", lock_mode="until_executed")
        for name in ("invoice", "billing.invoice")
    )
    one.delay()
    assert not is_duplicate(two.delay())


def test_a_name_for_display_makes_no_other_task(bench: Bench) -> None:
    invoice = declare(bench)
    invoice.apply_async(shadow="refund")
    assert is_duplicate(invoice.delay())


def test_the_next_step_waits_for_the_release_of_another_tasks_key(bench: Bench) -> None:
    """Even where it skips conflicts: the step before releases the key once it has sent this one."""
    lease = owned_by(bench, "before", marker="0" * 32, task="invoice")
    refund = bench.task(lambda: "ran", lock_key="k", lock_on_conflict="skip", lock_wait=0)
    request = bench.send(refund)
    assert bench.run(request, parent_id="before").state == "RETRY"
    lease.release()
    assert bench.run(bench.receive()).value == "ran"


@pytest.mark.parametrize("role", [Role.QUEUED, Role.RUNNING])
def test_a_scheduled_run_waits_for_another_tasks(bench: Bench, role: Role) -> None:
    """It neither stops nor overtakes it."""
    refund = job(bench, lock_on_conflict="stop")
    places = (KEY, COMPANION) if role is Role.RUNNING else (COMPANION,)
    owned_by(bench, "older", role, *places, due_us=tick(-60).due_us, task="invoice")
    before = value(bench, COMPANION)
    assert bench.run(send_tick(bench, refund, tick())).state == "RETRY"
    assert value(bench, COMPANION) == before


def test_a_worker_names_each_group_of_tasks_that_can_have_one_key(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bodies = {"invoice": lambda order_id: None, "refund": lambda id: None}
    keys = {"invoice": "{order_id}", "refund": "{id}"}
    for name, body in bodies.items():
        bench.task(body, name=name, lock_key=keys[name], lock_mode="until_executed")
    for name, key in (("alone", "alone:{n}"), ("running", "{n}")):
        mode = "while_executing" if name == "running" else "until_executed"
        bench.task(lambda n: None, name=name, lock_key=key, lock_mode=mode)
    bench.app.finalize()
    start_worker(bench)
    (line,) = (line for line in caplog.messages if "can have the same key" in line)
    assert line.startswith("The tasks invoice, refund lock at publish")
    assert "(lock_key='{id}' or '{order_id}')" in line
    assert line.endswith("lock_key='invoice:{order_id}'.")
