"""
Writing all rows that match a condition, or none of them.

A condition without a primary key may match rows that the caller does not know. If one of them has
seen a newer token, the whole call is refused: so the tokens of all rows are compared before any row
is written, and the rows must not change in between. How to ensure that depends on the database.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Connection, Update, exists, func, select, update

from celery_redlock.errors import ConfigurationError
from celery_redlock.fencing.sqlalchemy.columns import FencedTable
from celery_redlock.fencing.sqlalchemy.execution import SyncSession, run
from celery_redlock.fencing.sqlalchemy.session_objects import rows_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """
    The rows to write.

    Attributes:
        fenced: their table.
        where: the condition that they match.
        blocked: a condition; if a matching row meets it, no row is written.
    """

    fenced: FencedTable
    where: ColumnElement[bool]
    blocked: ColumnElement[bool]


_Strategy: TypeAlias = Callable[[SyncSession, Selection], Update]


def all_or_none(session: SyncSession, selection: Selection, dialect: str) -> Update:
    """
    Return an UPDATE, still without values, that writes all matching rows or none.

    Raises:
        ConfigurationError: the database cannot do that, or not with this session's settings.
    """
    if dialect not in _STRATEGIES:
        raise ConfigurationError(
            f"A condition on {selection.fenced.name} that names no primary key may match several "
            f"rows, and the fence does not know how to write all of them or none with {dialect}. "
            "Name each row by its primary key, in one transaction."
        )
    return _STRATEGIES[dialect](session, selection)


def _count_in_statement(_: SyncSession, selection: Selection) -> Update:
    """The statement compares all tokens itself; no other statement can write at the same time."""
    entity = selection.fenced.entity
    blocked = select(func.count(selection.fenced.table.c[0])).select_from(entity)
    # Not correlated: it counts among all matching rows of the table that is updated.
    count = blocked.where(selection.where, selection.blocked).correlate(None).scalar_subquery()
    return update(entity).where(selection.where, count == 0)


def _lock_in_statement(_: SyncSession, selection: Selection) -> Update:
    """
    The statement locks the rows, compares the tokens of the locked rows, and writes only those.

    A row that starts to match meanwhile is not written. It is one statement, because without a
    transaction the locks end with the statement.
    """
    keys = _keys(selection)
    # The order prevents a deadlock between two calls that lock the same rows.
    rows = select(*keys, selection.blocked.label("blocked")).where(selection.where).order_by(*keys)
    locked = rows.with_for_update().cte("redlock_locked")
    same = (key == column for key, column in zip(keys, locked.c, strict=False))
    refused = exists().where(locked.c.blocked)
    return update(selection.fenced.entity).where(*same, ~refused)


def _lock_before(session: SyncSession, selection: Selection) -> Update:
    """One statement locks the rows, and the next writes the locked rows."""
    connection = session
    if not isinstance(connection, Connection):
        target = {"mapper": selection.fenced.mapper, "clause": selection.fenced.table}
        connection = connection.connection(target)
    if connection._is_autocommit_isolation():
        raise ConfigurationError(
            f"A condition on {selection.fenced.name} that names no primary key may match several "
            f"rows. {connection.dialect.name} needs a transaction to write all of them or none, "
            "and isolation_level is AUTOCOMMIT. Name each row by its primary key."
        )
    keys = _keys(selection)
    rows = select(*keys, selection.blocked).where(selection.where).order_by(*keys).with_for_update()
    found = [tuple(row) for row in run(session, rows)]
    if any(blocked for *_, blocked in found):
        found = []
    return update(selection.fenced.entity).where(rows_in(keys, [row[:-1] for row in found]))


def _keys(selection: Selection) -> list[Any]:
    keys = selection.fenced.keys
    if not keys:
        raise ConfigurationError(
            f"{selection.fenced.name} has no primary key, so its rows cannot be locked and then "
            "written. Declare one."
        )
    return keys


_STRATEGIES: dict[str, _Strategy] = {
    "sqlite": _count_in_statement,
    "postgresql": _lock_in_statement,
    "mysql": _lock_before,
    "mariadb": _lock_before,
}
