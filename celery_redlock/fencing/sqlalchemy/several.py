"""
Writing all rows that match a condition, or none of them.

A condition that names no primary key may hold for rows that the caller does not know. One of them
that has seen a newer token refuses the whole call, so the rows are looked at before any is written,
and must be the same, and as they were, when they are. How that can be had depends on the database.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Connection, Update, exists, func, select, update

from celery_redlock.errors import ConfigurationError
from celery_redlock.fencing.sqlalchemy.columns import FencedTable
from celery_redlock.fencing.sqlalchemy.execution import SyncSession, run
from celery_redlock.fencing.sqlalchemy.loaded import rows_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """
    Which rows are to be written.

    Attributes:
        fenced: their table.
        where: what they match.
        barred: one row that matches and for which this holds refuses them all.
    """

    fenced: FencedTable
    where: ColumnElement[bool]
    barred: ColumnElement[bool]


_Way: TypeAlias = Callable[[SyncSession, Choice], Update]


def all_or_none(session: SyncSession, choice: Choice, dialect: str) -> Update:
    """
    Return an UPDATE, still without values, that hits all rows that match or none.

    Raises:
        ConfigurationError: the database has no way to do that, or not as the session is set up.
    """
    if dialect not in _WAYS:
        raise ConfigurationError(
            f"A condition on {choice.fenced.name} that names no primary key may hold for several "
            f"rows, and it is not known how {dialect} would write all of them or none. Name each "
            "row by its primary key, in one transaction."
        )
    return _WAYS[dialect](session, choice)


def _looking_inside(_: SyncSession, choice: Choice) -> Update:
    """The statement looks at the rows itself; no other one can write at the same time."""
    entity = choice.fenced.entity
    barred = select(func.count(choice.fenced.table.c[0])).select_from(entity)
    # Its table is the one that is updated, but all matching rows of it.
    count = barred.where(choice.where, choice.barred).correlate(None).scalar_subquery()
    return update(entity).where(choice.where, count == 0)


def _locking_inside(_: SyncSession, choice: Choice) -> Update:
    """
    The statement locks the rows, looks at what it has locked, and writes those and no others.

    A row that comes to match while it runs comes after it. One statement, since without a
    transaction the locks are gone at its end.
    """
    keys = _keys(choice)
    # The order keeps two calls that lock the same rows from a deadlock.
    rows = select(*keys, choice.barred.label("barred")).where(choice.where).order_by(*keys)
    locked = rows.with_for_update().cte("redlock_locked")
    same = (key == column for key, column in zip(keys, locked.c, strict=False))
    refused = exists().where(locked.c.barred)
    return update(choice.fenced.entity).where(*same, ~refused)


def _locking_first(session: SyncSession, choice: Choice) -> Update:
    """One statement locks the rows, and the next writes those that were locked."""
    connection = session
    if not isinstance(connection, Connection):
        target = {"mapper": choice.fenced.mapper, "clause": choice.fenced.table}
        connection = connection.connection(target)
    if connection._is_autocommit_isolation():
        raise ConfigurationError(
            f"A condition on {choice.fenced.name} that names no primary key may hold for several "
            f"rows. {connection.dialect.name} needs a transaction to write all of them or none, "
            "and isolation_level is AUTOCOMMIT. Name each row by its primary key."
        )
    keys = _keys(choice)
    rows = select(*keys, choice.barred).where(choice.where).order_by(*keys).with_for_update()
    found = [tuple(row) for row in run(session, rows)]
    if any(barred for *_, barred in found):
        found = []
    return update(choice.fenced.entity).where(rows_in(keys, [row[:-1] for row in found]))


def _keys(choice: Choice) -> list[Any]:
    keys = choice.fenced.keys
    if not keys:
        raise ConfigurationError(
            f"{choice.fenced.name} has no primary key, so its rows cannot be locked and then "
            "written. Declare one."
        )
    return keys


_WAYS: dict[str, _Way] = {
    "sqlite": _looking_inside,
    "postgresql": _locking_inside,
    "mysql": _locking_first,
    "mariadb": _locking_first,
}
