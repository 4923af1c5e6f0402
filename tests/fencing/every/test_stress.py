"""Eight processes write a thousand times each and are paused past their leases meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from celery_redlock.testing import LocalCluster
from tests.fencing.fences import KINDS, Guarded, file, guarded_at
from tests.fencing.stress import Load, check, run_stress
from tests.support.waiting import TIMEOUT

pytestmark = [pytest.mark.full, pytest.mark.timeout(10 * TIMEOUT)]

POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.system)
#: Nobody cuts the power here, and most of the time would go into waiting for the disk.
UNSYNCED = {"file": partial(file, fsync=False)}


@pytest.fixture
def place(
    request: pytest.FixtureRequest, tmp_path: Path, url_of: Callable[[str], str]
) -> tuple[Any, ...]:
    """The place that processes open to write to one thing, which is there."""
    kind = request.param
    place = ({**KINDS, **UNSYNCED}[kind], url_of(kind), tmp_path)
    with guarded_at(*place):
        return place


@contextmanager
def without_guard(*place: Any) -> Iterator[Guarded]:
    with guarded_at(*place) as thing:
        yield replace(
            thing,
            claim=lambda token: None,
            write=lambda content, token: thing.overwrite(content),
        )


@pytest.mark.parametrize("place", ["redis", "file", "sqlite", POSTGRESQL], indirect=True)
def test_no_accepted_write_is_lost_and_the_highest_token_s_write_is_left(
    redlock_cluster: LocalCluster, place: tuple[Any, ...]
) -> None:
    load = Load()
    check(run_stress(redlock_cluster.urls, partial(guarded_at, *place), load), load)


@pytest.mark.parametrize("place", ["redis", "sqlite", POSTGRESQL], indirect=True)
def test_without_the_guard_accepted_writes_are_lost(
    redlock_cluster: LocalCluster, place: tuple[Any, ...]
) -> None:
    load = Load(processes=4, writes=60, pausing=1.0)
    outcome = run_stress(redlock_cluster.urls, partial(without_guard, *place), load)
    assert sum(outcome.counted) < sum(outcome.accepted)
