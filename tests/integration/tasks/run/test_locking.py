"""A task body under its lock: when it locks, what the body sees, and what is left behind."""

from __future__ import annotations

import multiprocessing
from typing import Any

from celery_redlock import current_lease
from tests.support.tasks import Bench
from tests.unit.tasks.jobs import job


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
