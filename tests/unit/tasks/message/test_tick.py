"""A tick says the same to everybody who reads it, and what makes no sense is no tick."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_redlock.core import Redlock, client_of
from celery_redlock.tasks.message.envelope import HEADER, Envelope
from celery_redlock.tasks.message.node_keys import tick_dedupe_key
from celery_redlock.tasks.message.tick import Tick

DUE = datetime(2026, 3, 29, 1, 59, 59, 999999, tzinfo=UTC)


def test_a_tick_survives_its_message() -> None:
    tick = Tick(entry="nightly", due=1e9, schedule="beat:app", token=7, until=2e9, part="a1")
    assert Tick.read(json.loads(json.dumps(tick.write()))) == tick


def test_a_tick_of_a_plain_beat_names_no_leader() -> None:
    assert Tick(entry="nightly", due=1.5).write() == {"entry": "nightly", "due": 1.5}


@pytest.mark.parametrize("years", [0, 10, 200])
def test_a_due_time_is_exact_to_a_microsecond(years: int) -> None:
    due = DUE + timedelta(days=365 * years)
    tick = Tick(entry="nightly", due=due.timestamp())
    since_epoch = due - datetime(1970, 1, 1, tzinfo=UTC)
    assert tick.due_us == since_epoch // timedelta(microseconds=1)
    assert tick.due_at == due


@pytest.mark.parametrize(
    "value",
    [
        None,
        "nightly",
        ["nightly", 1.0],
        {},
        {"entry": "nightly"},
        {"entry": "", "due": 1.0},
        {"entry": b"nightly", "due": 1.0},
        {"entry": 5, "due": 1.0},
        {"entry": "\ud800", "due": 1.0},
        {"entry": "nightly", "due": "1.0"},
        {"entry": "nightly", "due": True},
        {"entry": "nightly", "due": -1.0},
        {"entry": "nightly", "due": float("inf")},
        {"entry": "nightly", "due": float("nan")},
        {"entry": "nightly", "due": 10**400},
    ],
)
def test_what_makes_no_sense_is_no_tick(value: Any) -> None:
    assert Tick.read(value) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("token", value) for value in (0, -1, True, 2**53, "7", 7.0, None)),
        *(("until", value) for value in ("1", True, -1, float("inf"), float("nan"), 10**400)),
        *(("schedule", value) for value in (5, None, b"beat", "\udfff", ["beat"])),
    ],
)
def test_what_is_no_token_time_or_name_is_not_said(name: str, value: Any) -> None:
    read = Tick.read({"entry": "nightly", "due": 1.0, name: value})
    assert read == Tick(entry="nightly", due=1.0)


def test_a_tick_travels_in_our_header() -> None:
    envelope = Envelope(nonce="n", tick=Tick(entry="nightly", due=1.5))
    assert Envelope.read({HEADER: envelope.write()}) == envelope


def test_a_header_without_a_tick_has_none() -> None:
    assert Envelope.read({HEADER: Envelope(nonce="n").write()}).tick is None


def place(redlock: Redlock | None = None, **changes: Any) -> str:
    facts = {"entry": "nightly", "due": 1.5, "schedule": "", "token": None, **changes}
    work = {"name": "report", "retries": 0, "nesting": 0}
    for name in work.keys() & facts.keys():
        work[name] = facts.pop(name)
    return tick_dedupe_key(client_of(redlock or Redlock("memory://tick")), Tick(**facts), **work)


def test_all_messages_of_a_tick_have_one_place_whoever_sent_them() -> None:
    assert place() == place(token=7, until=2.5)


@pytest.mark.parametrize(
    "other",
    [
        {"schedule": "beat:other"},
        {"entry": "daily"},
        {"due": 1.500001},
        {"name": "other"},
        {"retries": 1},
        {"nesting": 1},
        {"part": "a1"},
    ],
)
def test_other_work_has_another_place(other: dict[str, Any]) -> None:
    assert place(**other) != place()


def test_apps_with_different_prefixes_do_not_meet() -> None:
    assert place(Redlock("memory://tick", key_prefix="other:")) != place()
