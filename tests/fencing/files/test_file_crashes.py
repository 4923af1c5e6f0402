"""A writer may be killed anywhere: the file is whole, and the token never goes back."""

from __future__ import annotations

import itertools
import random
from functools import partial
from pathlib import Path

import pytest

from celery_redlock.errors import StaleFencingToken
from celery_redlock.fencing import FileFence
from tests.fencing.files.crashing import filled, kill_after, killed_at, write_on_and_on

KILLS = 40
LINES = 20_000


def crashes(path: Path, content: bytes | None) -> list[tuple[bytes | None, int | None]]:
    """Kill a writer of b"new" with token 7 at each of its steps; return what each has left."""
    left = []
    for step in itertools.count():
        for name in (path, path.with_name("data.redlock-token")):
            name.unlink(missing_ok=True)
        fence = FileFence(path)
        if content is not None:
            fence.write(content, 5)
        killed = killed_at(step, partial(FileFence(path, lock_timeout=5.0).write, b"new", 7))
        left.append((fence.read() if path.exists() else None, fence.seen()))
        if not killed:
            return left
    raise AssertionError("counted to the end")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.mark.parametrize("content", [b"old", None])
def test_wherever_a_writer_is_killed_the_token_is_there_before_the_content(
    path: Path, content: bytes | None
) -> None:
    old = (content, 5 if content else None)
    left = crashes(path, content)
    between = left.index((content, 7))
    after = left.index((b"new", 7))
    assert left == (
        [old] * between + [(content, 7)] * (after - between) + [(b"new", 7)] * (len(left) - after)
    )


def test_a_writer_killed_before_the_content_still_keeps_older_ones_out(path: Path) -> None:
    fence = FileFence(path)
    fence.write(b"old", 5)
    between = crashes(path, b"old").index((b"old", 7))
    killed_at(between, partial(fence.write, b"new", 7))
    with pytest.raises(StaleFencingToken):
        fence.write(b"stale", 6)


def test_killed_writers_leave_no_lock_and_no_litter(path: Path) -> None:
    crashes(path, b"old")
    FileFence(path, lock_timeout=5.0).write(b"newer", 8)
    assert sorted(name.name for name in path.parent.iterdir()) == [
        "data",
        "data.redlock-lock",
        "data.redlock-token",
    ]


@pytest.mark.full
def test_killed_at_any_moment_the_file_is_whole_and_its_token_never_goes_back(
    path: Path,
) -> None:
    chance = random.Random(1)
    fence = FileFence(path, lock_timeout=5.0, fsync=False)
    fence.write(filled(1, LINES), 1)
    seen, killed = 1, 0
    # On a busy machine some are killed before they write.
    while killed < KILLS or seen <= KILLS:
        killed += 1
        kill_after(chance.uniform(0.005, 0.06), partial(write_on_and_on, path, seen, LINES))
        content, now = fence.read(), fence.seen()
        assert now is not None
        written = int(content[:16])
        assert content == filled(written, LINES)
        assert written <= now
        assert seen <= now
        seen = now
