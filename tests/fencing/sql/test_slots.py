"""A row for each slot lets its holder write what all slots share, in the same transaction."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, and_, update
from sqlalchemy.orm import Session

from celery_redlock.errors import StaleFencingToken
from celery_redlock.fencing.sqlalchemy import fenced_claim
from tests.fencing.sql.models import Account, Seat


@pytest.fixture
def slots(engine: Engine) -> list[Seat]:
    """The rows of two slots, and an account that the holders of both change."""
    with Session(engine, expire_on_commit=False) as session, session.begin():
        rows = [Seat(row=1, number=slot, guest=None) for slot in (0, 1)]
        session.add_all([*rows, Account(id=7, balance=0)])
    return rows


def add_one(engine: Engine, seat: Seat, token: int) -> None:
    with Session(engine) as session, session.begin():
        fenced_claim(session, Seat, and_(Seat.row == seat.row, Seat.number == seat.number), token)
        session.execute(update(Account).values(balance=Account.balance + 1))


def balance(engine: Engine) -> int:
    with Session(engine) as session:
        account = session.get(Account, 7)
        assert account is not None
        return account.balance


def test_the_holders_of_two_slots_change_a_row_that_they_share(
    engine: Engine, slots: list[Seat]
) -> None:
    add_one(engine, slots[0], 9)
    add_one(engine, slots[1], 5)

    assert balance(engine) == 2


def test_an_earlier_holder_of_a_slot_changes_no_row_that_slots_share(
    engine: Engine, slots: list[Seat]
) -> None:
    add_one(engine, slots[0], 9)

    with pytest.raises(StaleFencingToken):
        add_one(engine, slots[0], 8)
    assert balance(engine) == 1
