"""`celery-redlock list`, `show` and `release` on the command line."""

from __future__ import annotations

import tempfile

from celery_redlock.testing import LocalCluster
from tests.support import forked
from tests.support.command_line import CommandLine


def test_without_a_quorum_no_part_of_an_object_is_printed(cli: CommandLine) -> None:
    with LocalCluster(3) as cluster:
        cluster.kill(0)
        cluster.kill(1)
        printed = cli("list", "--json", "--nodes", ",".join(cluster.urls), status=1)
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1


def test_a_reader_that_has_seen_enough_ends_the_list_in_silence() -> None:
    with LocalCluster(1) as cluster:
        pipeline = cluster.client(0).pipeline()
        for number in range(2000):
            pipeline.set(f"redlock:key {number}", "somebody", ex=60)
        pipeline.execute()
        command = ("-m", "celery_redlock", "list", "--nodes", cluster.urls[0])
        with (
            tempfile.TemporaryFile("w+") as errors,
            forked.reading(*command, stderr=errors.fileno()) as (process, printed),
        ):
            assert printed.readline().startswith("KEY")
            printed.close()
            assert process.wait() == 128 + 13
            errors.seek(0)
            assert errors.read() == ""
