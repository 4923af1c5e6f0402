"""A unique task from its publish to its end: what is held when, and what is left."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from celery_redlock import Lease
from celery_redlock.tasks.rules.facts import Role
from celery_redlock.tasks.run import running_lock
from tests.support.tasks import Bench
from tests.support.unique import (
    declare,
    mark,
    role,
    value,
)


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
