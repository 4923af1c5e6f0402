"""Children and their directory go with the process that started them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_redlock.testing.resources import ChildGuardian
from tests.support.waiting import wait_until

#: Starts children that make files for as long as they run.
OWNER = """
import subprocess, sys, time
from pathlib import Path
from celery_redlock.testing.resources import ChildGuardian
guardian = ChildGuardian(Path(sys.argv[1]))
script = 'while :; do n=$((n + 1)); : >"$1/$$-$n"; done'
for _ in range(4):
    subprocess.Popen(["/bin/sh", "-c", script, "child", sys.argv[1]], process_group=guardian.group)
time.sleep(600)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    found = tmp_path / "data"
    found.mkdir()
    return found


@pytest.fixture
def owner(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", OWNER, str(directory)]) as process:
        yield process
        process.kill()


def test_what_a_child_writes_to_its_last_moment_goes_too(
    directory: Path, owner: subprocess.Popen[bytes]
) -> None:
    wait_until(lambda: len(list(directory.iterdir())) > 1000)

    owner.kill()

    wait_until(lambda: not directory.exists(), message="the directory to be removed")


def test_an_owner_that_kills_its_children_keeps_the_directory(directory: Path) -> None:
    guardian = ChildGuardian(directory)
    child = subprocess.Popen(["sleep", "600"], process_group=guardian.group)

    guardian.kill()

    assert child.wait() != 0
    assert directory.exists()


def test_an_owner_that_lets_go_ends_its_children(directory: Path) -> None:
    guardian = ChildGuardian(directory)
    child = subprocess.Popen(["sleep", "600"], process_group=guardian.group)

    guardian.detach()

    assert child.wait() != 0
    wait_until(lambda: not directory.exists(), message="the directory to be removed")
    guardian.kill()
