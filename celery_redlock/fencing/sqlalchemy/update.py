"""
Updating existing rows.

A condition without a primary key may match rows that the caller does not know. If one of them has
seen a newer token, the whole call is refused: so the tokens of all rows are compared before any row
is written, and the rows must not change in between. How to ensure that depends on the database.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast, overload

from sqlalchemy import (
    ColumnElement,
    Connection,
    CursorResult,
    Dialect,
    Update,
    exists,
    func,
    or_,
    select,
    update,
)

from celery_redlock.errors import ConfigurationError
from celery_redlock.fencing.arguments import token_or_current
from celery_redlock.fencing.sqlalchemy.columns import (
    FencedTable,
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
    identity_in,
    missing_rows,
    raise_refusal,
    run,
)
from celery_redlock.fencing.sqlalchemy.session_objects import (
    KeyValues,
    loaded_objects,
    pending_changes,
    refresh,
    refuse_pending,
    rows_in,
)


@overload
def fenced_update(
    session: SyncSession,
    target: Target,
    where: ColumnElement[bool],
    token: int | None,
    values: Values,
) -> int: ...


@overload
def fenced_update(
    session: SyncSession,
    target: Target,
    where: ColumnElement[bool],
    *,
    values: Values,
) -> int: ...


def fenced_update(
    session: SyncSession,
    target: Target,
    where: ColumnElement[bool],
    token: int | None = None,
    values: Values | None = None,
) -> int:
    """
    Write the matching rows unless one of them has seen a newer token; return how many.

    This runs in the caller's transaction and does not end it: roll back when it raises. A condition
    on the primary key costs a single `UPDATE`. If the condition may match several rows, either all
    of them are written or none: on PostgreSQL and SQLite one statement compares and writes, on
    MySQL and MariaDB a first statement locks and compares. A row that starts to match after that is
    not written.

    The session refreshes its objects for the written rows, with the relationships that cascade,
    so that they do not show the rows as they were before the fence. Other objects do not change.
    The session flushes no pending change before the transaction has passed the fence, and pending
    changes to objects that it would refresh are refused.

    Args:
        session: a `Session`, `scoped_session` or `Connection`.
        target: the mapped class or Core table, with a column `fencing_token`.
        where: the condition; `and_(…)` for several.
        token: the fencing token; that of the current lease if None.
        values: the values to write, SQL expressions included.

    Raises:
        StaleFencingToken: a matching row has seen a newer token.
        FencedResourceMissing: no row matches.
        InvalidFencingToken: the token is invalid, or none was given outside of a lease.
        ConfigurationError: the target cannot be fenced, or not with this condition on this
            database; or an object of a matching row has unflushed changes.
    """
    token = token_or_current(token)
    dialect = dialect_of(session, target)
    fenced = fenced_table(target, dialect)
    values = checked_values(fenced, values)
    _check_condition(where)
    identity = identity_in(where, fenced)
    with fence_first(session):
        objects = loaded_objects(session, fenced.table)
        changes = pending_changes(session, objects)
        held = rows_in(fenced.keys, changes)
        if identity is None:
            selection = Selection(
                fenced=fenced, where=where, blocked=or_(fenced.blocks(token), held)
            )
            statement = all_or_none(session, selection, dialect.name)
        else:
            statement = update(fenced.entity).where(where, fenced.passes(token), ~held)
        statement = statement.values({**values, fenced.token: token})
        hit, written = _execute(session, statement, fenced, dialect, named=bool(objects))
        if not hit:
            resource = _resource(fenced, where, identity)
            raise_refusal(session, fenced, where, resource, token)
            refuse_pending(session, fenced, where, changes)
            raise missing_rows(resource)
        refresh(session, objects, written, changes)
    return hit


def _execute(
    session: SyncSession, statement: Update, fenced: FencedTable, dialect: Dialect, *, named: bool
) -> tuple[int, set[KeyValues] | None]:
    """Return how many rows were written; and which, if `named` and the database returns them."""
    if named and dialect.update_returning:
        hits = run(session, statement.returning(*fenced.keys))
        written: set[KeyValues] = {tuple(row) for row in hits}
        return len(written), written
    hit = cast("CursorResult[Any]", run(session, statement)).rowcount
    if hit < 0:
        raise ConfigurationError(
            f"{dialect.name}+{dialect.driver} does not report how many rows an UPDATE has written, "
            "so it is unknown whether the fence let it pass. Roll back, and use another driver."
        )
    return hit, None


def fenced_claim(
    session: SyncSession,
    target: Target,
    where: ColumnElement[bool],
    token: int | None = None,
) -> int:
    """
    Let the matching rows see the token without changing them; return how many.

    If what you write depends on what you read, claim the rows *before* you read them. Otherwise a
    superseded holder can write between this holder's read and its write, and that update is lost.
    From the claim on, the superseded holder's writes are refused, and the rows stay locked until
    the transaction ends, so ordinary ORM changes to them in this transaction are fenced as well.
    The claim is an UPDATE like any other: columns with `onupdate` change. Under AUTOCOMMIT nothing
    stays locked; use `fenced_update` there. Claim first in a transaction: what the session flushed
    before the claim was not fenced.

    Arguments and errors as with `fenced_update`.
    """
    return fenced_update(session, target, where, token, {})


@overload
async def fenced_update_async(
    session: AnyAsyncSession,
    target: Target,
    where: ColumnElement[bool],
    token: int | None,
    values: Values,
) -> int: ...


@overload
async def fenced_update_async(
    session: AnyAsyncSession,
    target: Target,
    where: ColumnElement[bool],
    *,
    values: Values,
) -> int: ...


async def fenced_update_async(
    session: AnyAsyncSession,
    target: Target,
    where: ColumnElement[bool],
    token: int | None = None,
    values: Values | None = None,
) -> int:
    """`fenced_update` with an `AsyncSession` or `AsyncConnection`."""
    check_async(session)
    token = token_or_current(token)
    return await session.run_sync(
        lambda sync: fenced_update(sync, target, where, token, cast("Values", values))
    )


async def fenced_claim_async(
    session: AnyAsyncSession,
    target: Target,
    where: ColumnElement[bool],
    token: int | None = None,
) -> int:
    """`fenced_claim` with an `AsyncSession` or `AsyncConnection`."""
    return await fenced_update_async(session, target, where, token, {})


def _check_condition(where: Any) -> None:
    # With Python's built-in `id`, `id == 1` is a bool, which SQLAlchemy reads as all or no rows.
    if not isinstance(where, ColumnElement):
        raise TypeError(f"where is a SQL condition such as Account.id == 1, not {where!r:.80}.")


def _resource(fenced: FencedTable, where: ColumnElement[bool], identity: Any) -> str:
    if identity is None:
        # Without the values, which may be confidential.
        return f"{fenced.name} where {where}"
    return f"{fenced.name} where " + " and ".join(f"{k} = {v!r}" for k, v in identity.items())


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
