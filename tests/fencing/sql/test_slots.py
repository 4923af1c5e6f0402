"""A row for each slot lets its holder write what all slots share, in the same transaction."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, and_, update
from sqlalchemy.orm import Session

from celery_redlock.errors import StaleFencingToken
from celery_redlock.fencing.sqlalchemy import fenced_claim
from tests.fencing.sql.models import Account, Seat
from tests.fencing.sql.rows import add, balances


@pytest.fixture
def slots(engine: Engine) -> Engine:
    """The rows of two slots, and an account that the holders of both change."""
    add(engine, *(Seat(row=1, number=slot) for slot in (0, 1)), Account(id=7))
    return engine


def add_one(engine: Engine, slot: int, token: int) -> None:
    with Session(engine) as session, session.begin():
        fenced_claim(session, Seat, and_(Seat.row == 1, Seat.number == slot), token)
        session.execute(update(Account).values(balance=Account.balance + 1))


def test_the_holders_of_two_slots_change_a_row_that_they_share(
    slots: Engine,
) -> None:
    add_one(slots, 0, 9)
    add_one(slots, 1, 5)

    assert balances(slots) == [2]


def test_an_earlier_holder_of_a_slot_changes_no_row_that_slots_share(
    slots: Engine,
) -> None:
    add_one(slots, 0, 9)

    with pytest.raises(StaleFencingToken):
        add_one(slots, 0, 8)
    assert balances(slots) == [1]
