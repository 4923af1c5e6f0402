"""How often a task waits for its lock nodes."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Task

from celery_redlock.protocol.commands import Command, Script
from celery_redlock.tasks.adoption import protect_tasks
from celery_redlock.transport.memory import MemoryNode, MemoryTransport
from tests.support.tasks import Bench
from tests.support.unique import declare


@pytest.fixture
def waits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[Script]:
    """Note what is said to the bench's node and waited for; other tests may have threads left."""
    said: list[Script] = []
    exchange = MemoryTransport.exchange

    def noted(transport: MemoryTransport, batch: Any, *args: Any, **kwargs: Any) -> None:
        if bench.node in transport.nodes:
            said.extend(command.script for command, _ in batch)
        exchange(transport, batch, *args, **kwargs)

    monkeypatch.setattr(MemoryTransport, "exchange", noted)
    return said


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("until_executed", [Script.ACQUIRE]),
        # How long the window has left is known to the nodes, and not after the lock was taken over.
        ("until_expired", [Script.INSPECT, Script.ACQUIRE]),
        ("until_executing", [Script.ACQUIRE, Script.RELEASE]),
        ("until_and_while_executing", [Script.ACQUIRE, Script.RELEASE]),
    ],
)
def test_a_run_waits_for_its_lock_once_and_for_no_release_after_the_body(
    bench: Bench, waits: list[Script], mode: str, expected: list[Script]
) -> None:
    request = bench.send(declare(bench, lock_mode=mode))
    waits.clear()
    bench.run(request)
    assert waits == expected


def test_handing_the_lock_to_a_retry_costs_a_wait_to_see_that_it_stands_and_one_for_its_message(
    bench: Bench, waits: list[Script]
) -> None:
    def body(self: Any) -> None:
        raise self.retry(countdown=1)

    request = bench.send(declare(bench, body))
    waits.clear()
    bench.run(request)
    assert waits == [Script.ACQUIRE, Script.RELEASE, Script.EXTEND, Script.INSPECT]


@pytest.mark.parametrize("options", [{"base": Task}, {"lock_key": "k"}], ids=["plain", "locking"])
def test_protection_from_twins_costs_one_wait(
    bench: Bench, waits: list[Script], options: dict[str, Any]
) -> None:
    bench.app.conf.redlock_dedupe = True
    task = bench.task(lambda: "ran", **options)
    bench.app.finalize()
    protect_tasks(bench.app)
    request = bench.send(task)
    bench.run(request)
    assert waits == [Script.ACQUIRE]


def test_each_node_gets_two_commands_of_a_run_that_need_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    nodes = [f"{bench.node_url}-{number}" for number in range(5)]
    bench.app.conf.redlock_nodes = nodes
    got: dict[str, list[Script]] = {}
    execute = MemoryNode.execute

    def noted(node: MemoryNode, command: Command) -> Any:
        got.setdefault(node.name, []).append(command.script)
        return execute(node, command)

    monkeypatch.setattr(MemoryNode, "execute", noted)
    bench.call(bench.task(lambda: None, lock_key="k"))
    assert got == {node: [Script.ACQUIRE, Script.RELEASE] for node in nodes}
