"""
A holder is frozen in its body past its lease, another one works, and the first wakes and writes.

Real workers, lock nodes, databases and servers. The same scene without the guard loses an update;
otherwise it would prove nothing that the guard prevents it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from celery.result import AsyncResult

from celery_redlock.errors import StaleFencingToken
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.worker import Worker
from tests.fencing.fences import KINDS, Guarded, guarded_at
from tests.support.waiting import TIMEOUT

OPENING = 100


Place = tuple[str, str]


@pytest.fixture(params=["sqlite", "redis", pytest.param("postgresql", marks=pytest.mark.system)])
def place(request: pytest.FixtureRequest, url_of: Callable[[str], str]) -> Place:
    """Where the balance is kept."""
    return request.param, url_of(request.param)


@pytest.fixture
def balance(place: Place, key: str, tmp_path: Path) -> Iterator[Guarded]:
    kind, url = place
    with guarded_at(KINDS[kind], url, tmp_path, key) as balance:
        balance.overwrite(b"%d" % OPENING)
        yield balance


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Keep a process from running."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def play(
    worker: Worker, key: str, lock: Lock, journal: Journal, place: Place, *, guarded: bool
) -> AsyncResult:
    """Play the scene: A deposits 10 and is frozen meanwhile, B deposits 50; return A's result."""
    late = worker.send("deposit", key, *place, 10, guarded, "late")
    pid = journal.wait_for("read")["pid"]
    with frozen(pid):
        lock.wait_until_gone()
        journal.open("prompt")
        prompt = worker.send("deposit", key, *place, 50, guarded, "prompt")
        assert prompt.get(timeout=TIMEOUT) == OPENING + 50
        journal.open("late")
    return late


def test_a_holder_that_wakes_after_its_lease_is_refused(
    worker: Worker, key: str, lock: Lock, journal: Journal, place: Place, balance: Guarded
) -> None:
    late = play(worker, key, lock, journal, place, guarded=True)

    with pytest.raises(StaleFencingToken) as refused:
        late.get(timeout=TIMEOUT)
    assert late.state == "FAILURE"
    assert balance.read() == b"150"
    offered, seen = (entry["token"] for entry in journal.of("read"))
    assert (refused.value.seen, refused.value.offered) == (seen, offered)


def test_without_the_guard_the_same_holder_destroys_an_update(
    worker: Worker, key: str, lock: Lock, journal: Journal, place: Place, balance: Guarded
) -> None:
    late = play(worker, key, lock, journal, place, guarded=False)

    assert late.get(timeout=TIMEOUT) == OPENING + 10
    assert balance.read() == b"110"


def test_a_task_writes_as_often_as_it_likes(
    worker: Worker, key: str, place: Place, balance: Guarded
) -> None:
    result = worker.send("deposit_in_steps", key, *place, 5)

    assert result.get(timeout=TIMEOUT) == OPENING + 5
