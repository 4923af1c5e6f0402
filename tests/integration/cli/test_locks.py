"""`celery-redlock list`, `show` and `release` on the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from celery_redlock import Redlock
from celery_redlock.cli import main
from celery_redlock.testing import LocalCluster
from tests.support.waiting import TIMEOUT

NODES = "memory://cli-piped-1,memory://cli-piped-2,memory://cli-piped-3"


@pytest.fixture
def redlock() -> Iterator[Redlock]:
    """A client of nodes that hold nothing at the end."""
    with Redlock(NODES.split(",")) as redlock:
        yield redlock


def test_without_a_quorum_no_part_of_an_object_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with LocalCluster(3) as cluster:
        cluster.kill(0)
        cluster.kill(1)
        assert main(["list", "--json", "--nodes", ",".join(cluster.urls)]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.splitlines()) == 1


def test_a_reader_that_has_seen_enough_ends_the_list_in_silence() -> None:
    with LocalCluster(1) as cluster:
        pipeline = cluster.client(0).pipeline()
        for number in range(2000):
            pipeline.set(f"redlock:key {number}", "somebody", ex=60)
        pipeline.execute()
        command = [sys.executable, "-m", "celery_redlock", "list", "--nodes", cluster.urls[0]]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline().startswith("KEY")
            process.stdout.close()
            assert process.stderr.read() == ""
            assert process.wait(TIMEOUT) == 128 + 13
