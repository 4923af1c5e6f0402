"""Nodes remember a message that waits for its lock, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.tasks import Bench
from tests.unit.tasks.jobs import job, occupy

FAIR = pytest.mark.parametrize("fair", [False, True])


def remembered(bench: Bench) -> list[str]:
    queue = bench.node.state.waiting.get("redlock:k")
    return [] if queue is None else list(queue.scores)


@FAIR
def test_a_message_that_is_requeued_is_remembered(bench: Bench, fair: bool) -> None:
    occupy(bench)
    request = bench.send(job(bench, lock_fair=fair))
    assert bench.run(request).state == "RETRY"
    assert remembered(bench) == [request["id"]]


@FAIR
@pytest.mark.parametrize("policy", ["skip", "raise", "reject"])
def test_a_message_that_ends_without_its_lock_is_not(bench: Bench, fair: bool, policy: str) -> None:
    occupy(bench)
    bench.call(job(bench, lock_fair=fair, lock_on_conflict=policy, acks_late=True))
    assert remembered(bench) == []


@FAIR
def test_a_message_that_gets_its_lock_is_forgotten(bench: Bench, fair: bool) -> None:
    holder = occupy(bench)
    bench.run(bench.send(job(bench, lock_fair=fair)))
    holder.release()
    assert bench.run(bench.receive()).state == "SUCCESS"
    assert remembered(bench) == []


@FAIR
def test_a_message_that_waits_in_its_process_and_is_skipped_then_is_forgotten(
    leaping_bench: Bench, fair: bool
) -> None:
    occupy(leaping_bench)
    task = job(leaping_bench, lock_fair=fair, lock_on_conflict="skip", lock_wait=1.1)
    leaping_bench.call(task)
    assert remembered(leaping_bench) == []


def test_a_conflict_function_is_called_once_for_each_holder(bench: Bench) -> None:
    asked: list[str] = []

    def decide(task: Any, conflict: Any) -> str:
        asked.append(conflict.holder)
        return "requeue"

    occupy(bench)
    assert bench.call(job(bench, lock_on_conflict=decide)).state == "RETRY"
    assert len(asked) == 1


@FAIR
def test_a_message_waits_by_its_priority(bench: Bench, fair: bool) -> None:
    occupy(bench)
    task = job(bench, lock_fair=fair)
    requests = [bench.send(task, priority=priority) for priority in (None, 3, 9)]
    for request in requests:
        assert bench.run(request).state == "RETRY"
    assert bench.node.state.waiting["redlock:k"].first(3) == [
        request["id"] for request in reversed(requests)
    ]
