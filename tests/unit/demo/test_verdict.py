"""The demo's table says what the journal and the files say, and nothing better."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.demo.runs import Book
from celery_redlock.demo.verdict import judge, lost_updates

PAYMENTS = {1: "A", 2: "A"}


def body(
    run: str, payment: int, token: int | None, **times: float
) -> list[tuple[float, dict[str, Any]]]:
    who = {"payment": payment, "account": PAYMENTS[payment], "pid": payment, "token": token}
    entered = times.pop("entered")
    records = [(entered, {"event": "entered", "at": entered, "run": run, **who})]
    return records + [(at, {"event": name, "at": at, "run": run}) for name, at in times.items()]


def verdict(*bodies: list[tuple[float, dict[str, Any]]], in_file: int = 2) -> dict[str, str]:
    """Return what was found for each subject that is not as expected."""
    book = Book()
    records = [each for records in bodies for each in records]
    book.enter(record for _, record in sorted(records, key=lambda each: each[0]))
    return {c.subject: c.found for c in judge(book, PAYMENTS, {"A": in_file}) if not c.holds}


KILLED = body("killed", 2, 5, entered=1.0, read=1.1, killed=1.5)
FROZEN = body("frozen", 1, 6, entered=2, read=2.1, frozen=2.2, woke=6, refused=6.1, left=6.2)
SECOND = body("second", 2, 7, entered=5.0, read=5.1, writing=5.5, wrote=5.6, left=5.7)
FIRST = body("first", 1, 8, entered=7.0, read=7.1, writing=7.5, wrote=7.6, left=7.7)


def test_a_run_in_which_the_lock_did_its_work_is_good() -> None:
    assert verdict(KILLED, FROZEN, SECOND, FIRST) == {}


def test_an_update_that_is_missing_in_the_file_is_counted() -> None:
    assert verdict(KILLED, FROZEN, SECOND, FIRST, in_file=1) == {
        "updates in the account files": "1"
    }
    assert lost_updates(PAYMENTS, {"A": 1}) == 1


def test_a_payment_that_was_written_twice_is_seen_even_if_the_sum_is_right() -> None:
    twice = body("twice", 2, 9, entered=8.0, read=8.1, writing=8.2, wrote=8.3, left=8.4)

    assert verdict(KILLED, FROZEN, SECOND, FIRST, twice) == {"payments written exactly once": "1"}


def test_a_body_that_began_before_the_one_ahead_had_left_is_an_overlap() -> None:
    early = body("first", 1, 8, entered=5.65, read=7.1, writing=7.5, wrote=7.6, left=7.7)

    assert verdict(KILLED, FROZEN, SECOND, early) == {"bodies that began beside another": "1"}


def test_a_killed_body_is_at_work_until_it_was_killed() -> None:
    beside = body("frozen", 1, 6, entered=1.4, read=2.1, frozen=2.2, woke=6, refused=6.1, left=6.2)

    assert verdict(KILLED, beside, SECOND, FIRST) == {"bodies that began beside another": "1"}


def test_a_token_that_does_not_exceed_the_one_before_is_seen() -> None:
    same = body("first", 1, 7, entered=7.0, read=7.1, writing=7.5, wrote=7.6, left=7.7)

    assert verdict(KILLED, FROZEN, SECOND, same) == {
        "fencing tokens above the one before": "3 of 4"
    }


def test_a_late_write_that_was_taken_is_seen() -> None:
    taken = body("frozen", 1, 6, entered=2, read=2.1, frozen=2.2, woke=6, wrote=6.1, left=6.2)

    assert verdict(KILLED, taken, SECOND) == {
        "late write of the frozen body": "taken",
        "writes by superseded holders": "1",
    }


@pytest.mark.parametrize(
    ("bodies", "missing"),
    [
        ((KILLED, SECOND, FIRST), {"late write of the frozen body": "not tried"}),
        ((FROZEN, SECOND, FIRST), {"payment of the killed process": "nobody killed"}),
    ],
    ids=["nobody was frozen", "nobody was killed"],
)
def test_a_fault_that_did_not_happen_is_no_success(bodies: Any, missing: dict[str, str]) -> None:
    assert verdict(*bodies) == missing


def test_the_payment_of_a_killed_process_has_to_be_written_by_another_run() -> None:
    found = verdict(KILLED, FROZEN, FIRST, in_file=1)

    assert found["payment of the killed process"] == "missing"
    assert found["payments written exactly once"] == "1"


def test_bodies_without_tokens_are_no_holders() -> None:
    found = verdict(body("a", 1, None, entered=1.0, read=1.1, writing=1.2, wrote=1.3, left=1.4))

    assert found["fencing tokens above the one before"] == "no tokens"
    assert found["writes by superseded holders"] == "no tokens"
