"""What stands on the nodes about a leader, and what else may stand there."""

from __future__ import annotations

import os

import pytest

from celery_redlock.beat.leader_record import (
    HOST,
    LeaderInfo,
    beat_label,
    own_leader_info,
    parse_leader,
)
from celery_redlock.protocol.keys import owner_value


def test_an_owner_value_tells_host_process_and_time() -> None:
    owner = owner_value(bytes(16), 1_773_144_000_000_000, beat_label())
    assert parse_leader(owner) == LeaderInfo(host=HOST, pid=os.getpid(), since=1_773_144_000.0)
    assert own_leader_info(owner, 7) == LeaderInfo(
        host=HOST, pid=os.getpid(), since=1_773_144_000.0, token=7
    )


def test_no_two_schedulers_have_one_label() -> None:
    assert beat_label() != beat_label()


@pytest.mark.parametrize(
    "owner",
    [
        None,
        "",
        "somebody",
        f"{'0' * 32} 5",
        f"{'0' * 32} 5 running id host 7",
        f"{'0' * 32} 5 beat host 7",
        f"{'0' * 32} 5 beat host pid nonce",
        f"{'0' * 32} {10**30} beat host 7 nonce",
    ],
)
def test_what_is_no_beat_is_none(owner: str | None) -> None:
    assert parse_leader(owner) is None


def test_a_leader_is_written_and_read() -> None:
    leader = LeaderInfo(host="höst\n", pid=7, since=1_773_144_000.5, token=9)
    assert LeaderInfo.read(leader.write()) == leader


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "7",
        "{}",
        '{"host": "h", "pid": "x", "since": 1, "token": 1}',
        '{"host": "h", "pid": 1, "since": 1e999, "token": 1}',
        '{"host": "h", "pid": 1, "since": NaN, "token": 1}',
        "[" * 100_000,
    ],
)
def test_a_text_that_makes_no_sense_is_no_leader(text: str) -> None:
    assert LeaderInfo.read(text) is None
