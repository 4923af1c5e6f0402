"""The commands on Sentinel groups, which a command line names as it names other nodes."""

from __future__ import annotations

import contextlib
import json
from functools import partial

import pytest

from celery_redlock import QuorumUnavailable, Redlock
from celery_redlock.testing import LocalSentinel
from tests.support import forked
from tests.support.command_line import CommandLine
from tests.support.waiting import wait_until


@pytest.fixture
def groups(redlock_sentinel: LocalSentinel) -> LocalSentinel:
    """Three groups whose masters vote."""
    return redlock_sentinel


@pytest.fixture
def run(groups: LocalSentinel, cli: CommandLine) -> CommandLine:
    return partial(cli, "--nodes", ",".join(groups.urls))


def test_init_arms_the_masters_of_new_groups(groups: LocalSentinel, run: CommandLine) -> None:
    for group in range(3):
        groups.client(group, groups.master(group)).flushall()
    rows = [line.split()[:2] for line in run("init").lines]
    assert rows == [[url, "armed"] for url in groups.urls]


def test_doctor_has_a_row_for_each_group(groups: LocalSentinel, run: CommandLine) -> None:
    assert [row.split()[0] for row in run("doctor").lines[1:4]] == groups.urls


def test_a_lock_is_listed_shown_and_released(groups: LocalSentinel, run: CommandLine) -> None:
    with Redlock(groups.urls) as redlock:
        lease = redlock.acquire("report")

        def is_on_each_master() -> bool:
            # A quorum suffices for the lock, and the process may reach the third master later: an
            # extension sets the key there too.
            lease.extend()
            return "3/3" in run("list").out

        wait_until(is_on_each_master)
        assert run("show", "report").out.count("locks-") == 3
        run("release", "report", "--yes")
        assert not lease.release()


def test_a_new_process_knows_the_holder_at_once(groups: LocalSentinel) -> None:
    with Redlock(groups.urls) as redlock, redlock.lock("report") as lease:
        assert lease.is_valid
        with Redlock(groups.urls) as new:
            assert new.holder("report") is not None


def test_a_new_process_does_not_count_what_a_promoted_master_has(groups: LocalSentinel) -> None:
    groups.fail_over(0)
    with (
        Redlock([groups.urls[0]], guard=True) as new,
        pytest.raises(
            QuorumUnavailable, match="was promoted; its votes on held locks will count in"
        ),
    ):
        new.holder("report")


def test_two_groups_show_the_holder_while_the_third_has_a_new_master(
    groups: LocalSentinel,
) -> None:
    with Redlock(groups.urls) as redlock, redlock.lock("report") as lease:
        groups.fail_over(0)
        with Redlock(groups.urls) as new:
            assert wait_until(lambda: holder(new, "report"))
        assert lease.is_valid


def holder(redlock: Redlock, key: str) -> object:
    """Return who holds a key; None before two nodes are connected whose votes count."""
    with contextlib.suppress(QuorumUnavailable):
        return redlock.holder(key)
    return None


def test_a_key_is_paused_and_resumed(groups: LocalSentinel, run: CommandLine) -> None:
    run("pause", "report", "--for", "10m")
    run("resume", "report")


def test_watch_shows_groups_and_their_locks(groups: LocalSentinel) -> None:
    with Redlock(groups.urls) as redlock, redlock.lock("report"):
        command = ("-m", "celery_redlock", "watch", "--json", "--nodes", ",".join(groups.urls))
        with forked.reading(*command) as (_, printed):
            line = printed.readline()
    nodes = json.loads(line)["nodes"]
    assert [(node["url"], node["reachable"]) for node in nodes] == [
        (url, True) for url in groups.urls
    ]
    assert '"report"' in line
