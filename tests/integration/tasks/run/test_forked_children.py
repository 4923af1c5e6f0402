"""A child that is forked in a body has nothing of the lock, and leaves it as it is."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from celery_redlock import Lease, current_lease
from celery_redlock.tasks.rules.facts import Role
from celery_redlock.tasks.run import running_lock
from tests.support.tasks import Bench
from tests.support.unique import declare, mark, role, value
from tests.unit.tasks.jobs import job


def test_a_child_forked_in_the_body_finishes_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    finishers = tmp_path / "finishers"
    release_with = running_lock.release_with

    def noted(lease: Lease, *args: Any, **kwargs: Any) -> bool:
        with finishers.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return release_with(lease, *args, **kwargs)

    def body(self: Any) -> None:
        child = os.fork()
        if child:
            os.waitpid(child, 0)

    monkeypatch.setattr(running_lock, "release_with", noted)
    request = bench.send(declare(bench, body))
    parent = os.getpid()
    try:
        bench.run(request)
    finally:
        if os.getpid() != parent:
            os._exit(0)
    assert finishers.read_text().split() == [str(parent)]
    assert (value(bench), role(bench, mark(bench, request))) == (None, Role.FINISHED)


def test_a_child_forked_in_the_body_holds_and_releases_nothing(bench: Bench) -> None:
    def look(pipe: Any) -> None:
        pipe.send([current_lease().is_valid, current_lease().release()])

    def body(self: Any) -> list[bool]:
        here, there = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=look, args=(there,))
        child.start()
        child.join()
        return [*here.recv(), bench.is_held("k"), self.lease.is_valid]

    assert bench.call(job(bench, body)).value == [False, False, True, True]
