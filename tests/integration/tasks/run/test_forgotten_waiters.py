"""Nodes forget a message that waited and ends without its lock: it would be woken for others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import signals
from celery.app.task import Context

from celery_redlock import LockContended
from celery_redlock.core import client_of
from celery_redlock.protocol.keys import pause_of
from celery_redlock.tasks.message.envelope import HEADER
from celery_redlock.tasks.message.owner_label import label_for
from celery_redlock.tasks.publish.cleanup import connect_cleanup
from celery_redlock.tasks.rules.facts import Role
from tests.support.nodes import Nodes
from tests.support.tasks import Bench, Outcome
from tests.support.ticks import send_tick, tick_now
from tests.support.unique import KEY, mark
from tests.support.waiting import wait_until
from tests.unit.tasks.jobs import job
from tests.unit.tasks.run.newest.company import COMPANION


@pytest.fixture
def bench(nodes: Nodes) -> Iterator[Bench]:
    """An app whose locks are on these nodes."""
    bench = Bench(redlock_nodes=nodes.urls, redlock_node_timeout=1.0)
    yield bench
    bench.close()


class Place:
    """A message that waits for a key which somebody outside Celery has."""

    def __init__(self, bench: Bench, nodes: Nodes) -> None:
        self.bench, self.nodes = bench, nodes
        self.client = nodes.connected()
        self.holder = self.client.acquire("k", ttl=60)
        nodes.wait_held(self.holder)

    def wait(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run a message, which has to wait; return it as it comes back once all nodes know it."""

        def all_know_it() -> bool:
            nonlocal request
            # The first attempts reach those nodes that are connected.
            assert self.bench.run(request).state == "RETRY"
            request = self.bench.receive()
            return self.waiting() == [[request["id"]]] * 5

        wait_until(all_know_it, message=lambda: f"to wait: {self.waiting()}")
        return request

    def waiting(self) -> list[list[str]]:
        """Return who waits for the key on each node."""
        return [self.nodes.waiting(node, "k") for node in range(5)]

    def wait_forgotten(self) -> None:
        """Wait until nobody waits for the key, for its pause, nor to ask its holder to stop."""
        names = ("k", COMPANION, pause_of(KEY))
        wait_until(
            lambda: not any(self.nodes.waiting(node, name) for node in range(5) for name in names),
            message=lambda: f"still remembered: {self.waiting()}",
        )

    def occupy(self, role: Role = Role.RUNNING, **facts: Any) -> Any:
        """Let another call have the key instead."""
        self.holder.release()
        self.nodes.wait_free("k")
        label = label_for(role, "other", task="job", **facts)
        return client_of(self.client).acquire_for_task(["k"], [COMPANION], ttl=60, label=label)


@pytest.fixture
def place(bench: Bench, nodes: Nodes) -> Place:
    """A key that somebody has."""
    return Place(bench, nodes)


def replaced_by_a_newer_call(place: Place) -> Outcome:
    again = place.wait(place.bench.send(job(place.bench, lock_on_conflict="stop")))
    place.occupy(sent_us=round((time.time() + 60) * 1_000_000))
    return place.bench.run(again)


def gave_up(place: Place) -> Outcome:
    again = place.wait(place.bench.send(job(place.bench)))
    again[HEADER]["first_seen"] -= 10_000_000
    return place.bench.run(again)


def skipped_by_its_function(place: Place) -> Outcome:
    def skip_for_a_task(task: Any, error: LockContended) -> str:
        return "skip" if "other" in (error.holder or "") else "requeue"

    again = place.wait(place.bench.send(job(place.bench, lock_on_conflict=skip_for_a_task)))
    place.occupy()
    return place.bench.run(again)


def missed_its_deadline(place: Place) -> Outcome:
    task = job(place.bench, lock_starting_deadline=30)
    again = place.wait(send_tick(place.bench, task, tick_now()))
    again[HEADER]["tick"]["due"] -= 60
    return place.bench.run(again)


def missed_its_deadline_during_a_pause(place: Place) -> Outcome:
    place.client.pause("k", 60)
    return missed_its_deadline(place)


def skipped_as_a_duplicate(place: Place) -> Outcome:
    again = place.wait(place.bench.send(job(place.bench, lock_mode="until_executed")))
    place.occupy()
    return place.bench.run(again)


def failed_as_a_duplicate(place: Place) -> Outcome:
    options = {"lock_mode": "until_executed", "lock_on_duplicate": lambda task, error: "raise"}
    again = place.wait(place.bench.send(job(place.bench, **options)))
    place.occupy()
    return place.bench.run(again)


def revoked_by_its_marker(place: Place) -> Outcome:
    again = place.wait(place.bench.send(job(place.bench, lock_mode="until_executed")))
    label = label_for(Role.REVOKED, again["id"])
    client_of(place.client).acquire_for_task((), [mark(place.bench, again)], ttl=60, label=label)
    return place.bench.run(again)


def not_requeued(place: Place) -> Outcome:
    again = place.wait(place.bench.send(job(place.bench)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place.bench.app.amqp, "send_task_message", refuse)
        return place.bench.run(again)


def failed_without_a_quorum(place: Place) -> Outcome:
    return without_a_quorum(place, "raise")


def ran_without_its_lock(place: Place) -> Outcome:
    return without_a_quorum(place, "run_unlocked")


def without_a_quorum(place: Place, policy: str) -> Outcome:
    again = place.wait(place.bench.send(job(place.bench, lock_on_unavailable=policy)))
    place.nodes.pause(0, 1, 2)
    outcome = place.bench.run(again)
    place.nodes.resume(0, 1, 2)
    return outcome


def refuse(*_: Any, **__: Any) -> None:
    raise OSError("no broker")


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (replaced_by_a_newer_call, "IGNORED"),
        (gave_up, "FAILURE"),
        (skipped_by_its_function, "SUCCESS"),
        (missed_its_deadline, "SUCCESS"),
        (missed_its_deadline_during_a_pause, "SUCCESS"),
        (skipped_as_a_duplicate, "SUCCESS"),
        (failed_as_a_duplicate, "FAILURE"),
        (revoked_by_its_marker, "IGNORED"),
        (not_requeued, "FAILURE"),
        (failed_without_a_quorum, "FAILURE"),
        (ran_without_its_lock, "SUCCESS"),
    ],
    ids=lambda way: getattr(way, "__name__", ""),
)
def test_a_message_that_ends_without_its_lock_waits_no_more(
    place: Place, end: Callable[[Place], Outcome], state: str
) -> None:
    assert end(place).state == state
    place.wait_forgotten()


@pytest.mark.parametrize("expired", [True, False])
def test_a_message_that_is_revoked_or_expires_while_it_waits_is_forgotten(
    place: Place, expired: bool
) -> None:
    task = job(place.bench)
    again = place.wait(place.bench.send(task))
    connect_cleanup()
    signals.task_revoked.send(
        sender=task, request=Context(again), terminated=False, signum=None, expired=expired
    )
    place.wait_forgotten()
