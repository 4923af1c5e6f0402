"""
Writing a row that may not exist yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, overload

from sqlalchemy import and_
from sqlalchemy.dialects import postgresql, sqlite

from celery_redlock.errors import ConfigurationError
from celery_redlock.fencing.arguments import token_or_current
from celery_redlock.fencing.sqlalchemy.columns import (
    Target,
    Values,
    checked_values,
    fenced_table,
)
from celery_redlock.fencing.sqlalchemy.execution import (
    AnyAsyncSession,
    SyncSession,
    check_async,
    dialect_of,
    fence_first,
    missing_rows,
    raise_refusal,
    run,
)
from celery_redlock.fencing.sqlalchemy.session_objects import (
    loaded_objects,
    pending_changes,
    refresh,
    refuse_pending,
    rows_in,
)

_INSERT: dict[str, Any] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}


@overload
def fenced_upsert(
    session: SyncSession,
    target: Target,
    token: int | None,
    values: Values,
    *,
    key: Sequence[Any] | None = None,
) -> None: ...


@overload
def fenced_upsert(
    session: SyncSession,
    target: Target,
    *,
    values: Values,
    key: Sequence[Any] | None = None,
) -> None: ...


def fenced_upsert(
    session: SyncSession,
    target: Target,
    token: int | None = None,
    values: Values | None = None,
    *,
    key: Sequence[Any] | None = None,
) -> None:
    """
    Insert a row, or update the existing one unless it has seen a newer token.

    This runs one `INSERT … ON CONFLICT … DO UPDATE … WHERE fencing_token <= :token`, on PostgreSQL
    and SQLite. Limit: a deleted row has lost its token, so a stale writer can insert it again; mark
    rows as deleted where that matters. The session refreshes its object for the row, as with
    `fenced_update`.

    Args:
        session: a `Session`, `scoped_session` or `Connection`; the transaction is the caller's.
        target: the mapped class or Core table, with a column `fencing_token`.
        token: the fencing token; that of the current lease if None.
        values: the row, its key included, as plain values; for an expression on the existing row
            (`balance + 1`) use `fenced_update`.
        key: columns of the unique constraint that identifies the row; by default the primary key.

    Raises:
        StaleFencingToken: the row exists and has seen a newer token.
        InvalidFencingToken: the token is invalid, or none was given outside of a lease.
        ConfigurationError: the target cannot be fenced, the database has no such statement, or an
            object of the row has unflushed changes.
    """
    token = token_or_current(token)
    dialect = dialect_of(session, target)
    fenced = fenced_table(target, dialect)
    if dialect.name not in _INSERT:
        raise ConfigurationError(
            f"{dialect.name} has no INSERT that updates an existing row on a condition. Insert the "
            "row unfenced, ignoring an existing one, and then call fenced_update."
        )
    if fenced.mapper is not None and fenced.mapper.polymorphic_on is not None:
        raise ConfigurationError(
            f"{fenced.name} holds objects of several classes, and an existing row may be one of "
            "another class. Give the table itself (Class.__table__), with its type as a value."
        )
    row = {fenced.column_of(name): value for name, value in checked_values(fenced, values).items()}
    columns = [fenced.column_of(name) for name in key] if key else list(fenced.table.primary_key)
    for column in columns:
        if column not in row:
            raise ConfigurationError(f"values for {fenced.name} lack the key {column.key!r}.")
    row[fenced.column] = token

    insert = _INSERT[dialect.name](fenced.table).values(row)
    written = {column: insert.excluded[column.key] for column in row if column not in columns}
    where = and_(*(column == row[column] for column in columns))
    with fence_first(session):
        objects = loaded_objects(session, fenced.table)
        changes = pending_changes(session, objects)
        primary = list(fenced.table.primary_key)
        statement = insert.on_conflict_do_update(
            index_elements=columns,
            set_=written,
            where=and_(fenced.core.passes(token), ~rows_in(primary, changes)),
        ).returning(*(primary or columns))
        stored = run(session, statement).one_or_none()
        if stored is None:
            resource = f"{fenced.name} where " + " and ".join(
                f"{column.key} = {row[column]!r}" for column in columns
            )
            raise_refusal(session, fenced.core, where, resource, token)
            refuse_pending(session, fenced, where, changes)
            raise missing_rows(resource)
        refresh(session, objects, {tuple(stored)}, changes)


@overload
async def fenced_upsert_async(
    session: AnyAsyncSession,
    target: Target,
    token: int | None,
    values: Values,
    *,
    key: Sequence[Any] | None = None,
) -> None: ...


@overload
async def fenced_upsert_async(
    session: AnyAsyncSession,
    target: Target,
    *,
    values: Values,
    key: Sequence[Any] | None = None,
) -> None: ...


async def fenced_upsert_async(
    session: AnyAsyncSession,
    target: Target,
    token: int | None = None,
    values: Values | None = None,
    *,
    key: Sequence[Any] | None = None,
) -> None:
    """`fenced_upsert` with an `AsyncSession` or `AsyncConnection`."""
    check_async(session)
    token = token_or_current(token)
    await session.run_sync(
        lambda sync: fenced_upsert(sync, target, token, cast("Values", values), key=key)
    )
