"""
A holder is frozen in its body past its lease, another one works, and the first wakes and writes.

Real workers, lock nodes, databases and servers. The same scene without the guard loses an update;
otherwise it would prove nothing that the guard prevents it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest
from celery.result import AsyncResult

from celery_redlock.errors import StaleFencingToken
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.worker import Worker
from tests.fencing.scenes.resources import Resource, resource_at
from tests.support.waiting import TIMEOUT

OPENING = 100


@pytest.fixture
def balance(resource_url: str, key: str) -> Iterator[Resource]:
    balance = resource_at(resource_url, key)
    balance.create(OPENING)
    yield balance
    balance.close()


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Keep a process from running."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def play(
    worker: Worker, key: str, lock: Lock, journal: Journal, url: str, *, guarded: bool
) -> AsyncResult:
    """Play the scene: A deposits 10 and is frozen meanwhile, B deposits 50; return A's result."""
    late = worker.send("deposit", key, url, 10, guarded, "late")
    pid = journal.wait_for("read")["pid"]
    with frozen(pid):
        lock.wait_until_gone()
        journal.open("prompt")
        prompt = worker.send("deposit", key, url, 50, guarded, "prompt")
        assert prompt.get(timeout=TIMEOUT) == OPENING + 50
        journal.open("late")
    return late


def test_a_holder_that_wakes_after_its_lease_is_refused(
    worker: Worker,
    key: str,
    lock: Lock,
    journal: Journal,
    resource_url: str,
    balance: Resource,
) -> None:
    late = play(worker, key, lock, journal, resource_url, guarded=True)

    with pytest.raises(StaleFencingToken) as refused:
        late.get(timeout=TIMEOUT)
    assert late.state == "FAILURE"
    assert balance.read() == OPENING + 50
    offered, seen = (entry["token"] for entry in journal.of("read"))
    assert (refused.value.seen, refused.value.offered) == (seen, offered)


def test_without_the_guard_the_same_holder_destroys_an_update(
    worker: Worker,
    key: str,
    lock: Lock,
    journal: Journal,
    resource_url: str,
    balance: Resource,
) -> None:
    late = play(worker, key, lock, journal, resource_url, guarded=False)

    assert late.get(timeout=TIMEOUT) == OPENING + 10
    assert balance.read() == OPENING + 10


def test_a_task_writes_as_often_as_it_likes(
    worker: Worker, key: str, resource_url: str, balance: Resource
) -> None:
    result = worker.send("deposit_in_steps", key, resource_url, 5)

    assert result.get(timeout=TIMEOUT) == OPENING + 5
