"""An owner value tells whose it is, and is short whatever the task's id is."""

from __future__ import annotations

import pytest

from celery_redlock.tasks.message.owner_label import TaskOwner, label_for, label_id, parse_owner
from celery_redlock.tasks.rules.facts import Role

START = "0" * 32 + " 1700000000000000 "
LONG = "x" * 1_000_000
#: As long as an owner value's label may be.
BOUND = 1500


def owner_of(task_id: str, host: str | None = None) -> TaskOwner:
    owner = parse_owner(START + label_for(Role.QUEUED, task_id, host))
    assert owner is not None
    return owner


@pytest.mark.parametrize("task_id", ["", "a b%20c", "ä/ö@host:1", "x" * 512, "ü" * 85])
def test_a_usual_id_is_told_as_it_is(task_id: str) -> None:
    assert owner_of(task_id).task_id == task_id
    assert owner_of(task_id).is_of(task_id)


@pytest.mark.parametrize("task_id", [LONG, "ü" * 200, "\ud800", LONG + "\udfff"])
def test_an_id_that_cannot_be_told_is_told_as_a_digest(task_id: str) -> None:
    assert len(label_for(Role.QUEUED, task_id)) < BOUND
    assert owner_of(task_id).task_id.startswith("sha256:")
    assert owner_of(task_id).is_of(task_id)


def test_two_long_ids_are_told_apart() -> None:
    assert not owner_of(LONG).is_of(LONG + "x")


def test_a_digest_is_known_as_itself() -> None:
    assert label_id(label_id(LONG)) == label_id(LONG)


def test_no_task_is_that_without_an_id() -> None:
    assert not owner_of("").is_of(None)


def test_a_long_host_name_is_cut() -> None:
    assert len(label_for(Role.QUEUED, "id", "ü" * 1_000_000)) < BOUND
    assert owner_of("id", "w@" + "h" * 10_000).host.startswith("w@hh")


def test_a_host_name_that_is_no_text_is_told_in_part() -> None:
    assert owner_of("id", "w@\udcff").host == "w@?"


@pytest.mark.parametrize("since", ["-1", "9" * 30, "9" * 10_000, "x"])
def test_what_was_set_at_no_time_is_no_owner_value(since: str) -> None:
    label = label_for(Role.RUNNING, "id")
    assert parse_owner(f"{'0' * 32} {since} {label}") is None


def test_the_burst_and_the_replaced_call_are_read_as_they_were_written() -> None:
    label = label_for(Role.QUEUED, "id", burst_us=1_700_000_000_000_001, replaces="0" * 32)
    owner = parse_owner(START + label)
    assert owner is not None
    assert (owner.burst_us, owner.replaces) == (1_700_000_000_000_001, "0" * 32)


@pytest.mark.parametrize("ignored", [True, False])
def test_whether_a_result_is_stored_is_read_as_it_was_written(ignored: bool) -> None:
    owner = parse_owner(START + label_for(Role.QUEUED, "id", ignored=ignored))
    assert owner is not None
    assert owner.ignored is ignored


@pytest.mark.parametrize("burst", ["-1", "9" * 30, "9" * 10_000, "x", ""])
def test_a_burst_that_began_at_no_time_makes_no_owner_value(burst: str) -> None:
    label = f"{label_for(Role.QUEUED, 'id')} burst={burst}"
    assert parse_owner(START + label) is None
