"""
Statements in the caller's transaction, and the reason why a statement has written no row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import (
    BindParameter,
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Executable,
    Result,
    Table,
    func,
    select,
)
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BinaryExpression, BooleanClauseList, Grouping

from celery_redlock.errors import ConfigurationError, FencedResourceMissing
from celery_redlock.fencing.arguments import refuse, require_methods, stale
from celery_redlock.fencing.sqlalchemy.columns import NAME, FencedTable, Target

if TYPE_CHECKING:
    # Needs greenlet, which SQLAlchemy installs only with its extra for asyncio.
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

SyncSession: TypeAlias = Session | scoped_session[Any] | Connection
AnyAsyncSession: TypeAlias = "AsyncSession | AsyncConnection"


def dialect_of(session: SyncSession, target: Target) -> Dialect:
    """Return the dialect that statements on a target will be compiled for."""
    if isinstance(session, Connection):
        return session.dialect
    if not isinstance(session, Session | scoped_session):
        raise refuse(
            "A fenced statement",
            "a Session, scoped_session or Connection",
            session,
            "With an AsyncSession or AsyncConnection use fenced_update_async, fenced_claim_async "
            "or fenced_upsert_async; for an engine, give Session(engine) or engine.connect().",
        )
    if isinstance(target, Table):
        return session.get_bind(clause=target).dialect
    return session.get_bind(target).dialect


def check_async(session: AnyAsyncSession) -> None:
    """Raise `ConfigurationError` unless `session` runs functions of blocking sessions."""
    require_methods(
        "A fenced statement with asyncio",
        "an AsyncSession or AsyncConnection",
        session,
        ("run_sync",),
        "With a Session or Connection use fenced_update, fenced_claim or fenced_upsert; call an "
        "async_scoped_session or a sessionmaker, and give the session that it returns.",
    )


def fence_first(session: SyncSession) -> AbstractContextManager[Any]:
    """
    Keep the session from flushing changes before the fence has compared tokens.

    An earlier flush would write them unfenced; a later one belongs to a transaction that has passed
    the fence and has locked the row.
    """
    return nullcontext() if isinstance(session, Connection) else session.no_autoflush


def run(session: SyncSession, statement: Executable) -> Result[Any]:
    """Execute a statement without applying its changes to loaded objects."""
    # Otherwise SQLAlchemy would compare tokens that it loaded long ago, and mark objects as written
    # although the fence refused their rows.
    options = {"synchronize_session": False}
    result: Result[Any] = session.execute(statement, execution_options=options)
    return result


def raise_refusal(
    session: SyncSession,
    fenced: FencedTable,
    where: ColumnElement[bool],
    resource: str,
    token: int,
) -> None:
    """
    Raise the error that explains why no row was written; return if the rows' tokens show none.

    It locks the rows where the database can.
    """
    # A locking read: under MySQL's REPEATABLE READ a plain one shows an old state, while UPDATE
    # sees the present state. The order prevents a deadlock between two calls that lock the same
    # rows.
    rows = select(fenced.token.label("token")).where(where).order_by(*fenced.table.primary_key)
    locked = rows.with_for_update().subquery()
    seen = locked.c.token
    counts = select(func.count(), func.count(seen), func.max(seen)).select_from(locked)
    row: Any = run(session, counts).one()
    matching, known, newest = row
    if newest is not None and newest > token:
        raise stale(resource, int(newest), token)
    if known < matching and not fenced.column.nullable:
        raise ConfigurationError(
            f"{NAME} is NULL in {resource}, although the model declares it NOT NULL. "
            "Set it to 0 where it is NULL, and make the column NOT NULL in the database."
        )


def missing_rows(resource: str) -> FencedResourceMissing:
    """Return the error for rows that do not exist."""
    return FencedResourceMissing(
        f"There is no row: {resource}. Nothing was written, and no token was compared. Insert the "
        "row first (fenced_upsert does both; an object that was only added to the session has no "
        "row before session.flush()).",
        resource,
    )


def identity_in(where: ColumnElement[bool], fenced: FencedTable) -> dict[str, Any] | None:
    """Return the primary key if the condition names exactly one, else None."""
    wanted = {column.name for column in fenced.table.primary_key}
    found = {}
    for part in _conjuncts(where):
        if isinstance(part, BinaryExpression) and part.operator is operators.eq:
            for column, value in ((part.left, part.right), (part.right, part.left)):
                if isinstance(column, Column) and isinstance(value, BindParameter):
                    # A column of an alias does not restrict rows of the table itself.
                    own = column.name in wanted and column.table == fenced.table
                    if own and value.value is not None:
                        found[column.name] = value.value
    return found if wanted and found.keys() == wanted else None


def _conjuncts(where: Any) -> Iterator[Any]:
    if isinstance(where, Grouping):
        yield from _conjuncts(where.element)
    elif isinstance(where, BooleanClauseList) and where.operator is operators.and_:
        for part in where.clauses:
            yield from _conjuncts(part)
    else:
        yield where
