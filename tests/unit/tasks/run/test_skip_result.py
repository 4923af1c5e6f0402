"""What a skipped task ends with, and how a program recognises it."""

from __future__ import annotations

from typing import Any

import pytest
from kombu.serialization import dumps, loads, registry

from celery_redlock import is_skipped
from celery_redlock.tasks.config.option_values import DESCRIBED, skip_result
from tests.support.tasks import Bench
from tests.support.ticks import send_tick, tick_now
from tests.support.waiting import wait_until
from tests.unit.tasks.jobs import job, occupy

SKIPPED = skip_result(DESCRIBED, "Lock 'k' is held by 'another'.")


@pytest.mark.parametrize("result", [{"skipped": True}, None], ids=str)
def test_the_result_is_the_one_that_is_asked_for(bench: Bench, result: Any) -> None:
    occupy(bench)
    outcome = bench.call(job(bench, lock_on_conflict="skip", lock_skip_result=result))
    assert (outcome.state, outcome.value) == ("SUCCESS", result)


@pytest.mark.parametrize(
    "conf",
    [{"redlock_skip_result": None}, {"redlock_tasks": {"job": {"lock_skip_result": None}}}],
    ids=["setting", "pattern"],
)
def test_none_is_the_result_where_the_app_asks_for_it(conf: dict[str, Any]) -> None:
    bench = Bench(**conf)
    occupy(bench)
    assert bench.call(job(bench, lock_on_conflict="skip")).value is None


def test_a_run_that_comes_too_late_ends_with_the_reason_and_sends_it(bench: Bench) -> None:
    sent = bench.watch_monitor_events()
    task = job(bench, lock_starting_deadline=60)
    reason = bench.run(send_tick(bench, task, tick_now(-100))).value["reason"]
    assert "lock_starting_deadline = 60 s ended" in reason
    ((kind, fields),) = wait_until(lambda: sent)
    assert (kind, fields["reason"]) == ("redlock-skipped", reason)


@pytest.mark.parametrize("serializer", sorted(registry.name_to_type))
def test_every_serializer_keeps_it(serializer: str) -> None:
    content_type, encoding, data = dumps(SKIPPED, serializer=serializer)
    kept = loads(data, content_type, encoding, accept=[content_type])
    assert kept == SKIPPED
    assert type(kept) is type(SKIPPED) is dict
    assert is_skipped(kept)


@pytest.mark.parametrize(
    "result",
    [None, "skipped", {"skipped": 3}, {"celery_redlock": 1}, ["skipped"], SKIPPED["reason"]],
)
def test_the_result_of_a_run_is_not_taken_for_it(result: Any) -> None:
    assert not is_skipped(result)
