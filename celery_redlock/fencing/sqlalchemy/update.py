"""
Updating rows that exist.
"""

from __future__ import annotations

from typing import Any, cast, overload

from sqlalchemy import ColumnElement, CursorResult, Dialect, Update, or_, update

from celery_redlock.errors import ConfigurationError
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
    dialect_of,
    fence_first,
    identity_in,
    missing_rows,
    raise_refusal,
    read_tokens,
    run,
)
from celery_redlock.fencing.sqlalchemy.multi_row import Selection, all_or_none
from celery_redlock.fencing.sqlalchemy.session_objects import (
    Row,
    loaded_objects,
    pending_changes,
    refresh,
    refuse_pending,
    rows_in,
)
from celery_redlock.fencing.tokens import token_or_current


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
    Write the rows that match, unless one of them has seen a newer token; return how many.

    Runs in the caller's transaction and ends it in no way: roll back when it raises. A row that is
    named by its primary key costs one `UPDATE` and nothing more. If the condition may match
    several rows, they are all written or none is: on PostgreSQL and SQLite the same statement
    looks at them and writes them, on MySQL and MariaDB one locks and looks first. A row that comes
    to match after they were looked at is not written.

    Objects of the session that were loaded before, and stand for rows that were written, are read
    again, with the relationships that cascade to what belongs to them; so they show the rows as
    they are now and not as they were before the guard. Other objects stay as they were. Changes
    that are pending in the session are not flushed before the guard has let the transaction
    through, and pending changes to objects that would be read again are refused.

    Args:
        session: a `Session`, `scoped_session` or `Connection`.
        target: the mapped class or Core table, with a column `fencing_token`.
        where: which rows; `and_(…)` for several conditions.
        token: the fencing token; that of the current lease if left out or None.
        values: what to write, SQL expressions included.

    Raises:
        StaleFencingToken: a matching row has seen a newer token.
        FencedResourceMissing: no row matches.
        InvalidFencingToken: the token cannot be one, or is left out where no lease is held.
        ConfigurationError: the target cannot be guarded, or not with this condition on this
            database; or an object of a matching row has changes that are not flushed.
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
            raise_refusal(read_tokens(session, fenced, where), fenced, resource, token)
            refuse_pending(session, fenced, where, changes)
            raise missing_rows(resource)
        refresh(session, objects, written, changes)
    return hit


def _execute(
    session: SyncSession, statement: Update, fenced: FencedTable, dialect: Dialect, *, named: bool
) -> tuple[int, set[Row] | None]:
    """Return how many rows were hit; and which, if that is asked for and the database can tell."""
    if named and dialect.update_returning:
        hits = run(session, statement.returning(*fenced.keys))
        written: set[Row] = {tuple(row) for row in hits}
        return len(written), written
    hit = cast("CursorResult[Any]", run(session, statement)).rowcount
    if hit < 0:
        raise ConfigurationError(
            f"{dialect.name}+{dialect.driver} does not tell how many rows an UPDATE has hit, "
            "so nobody knows whether it was let through. Roll back, and use another driver."
        )
    return hit, None


def fenced_claim(
    session: SyncSession,
    target: Target,
    where: ColumnElement[bool],
    token: int | None = None,
) -> int:
    """
    Announce the token to the rows that match without changing them; return how many.

    What is written depends on what was read? Then claim the rows *before* reading them. Without,
    the holder that was superseded can still write between this holder's read and its write, and
    that write is lost. From the claim on it is refused, and until the transaction ends the rows are
    locked as well, so ordinary ORM changes to them in this transaction are as good as guarded.
    It is an UPDATE like any other: columns with `onupdate` change. Under AUTOCOMMIT nothing stays
    locked: write the rows with `fenced_update` then. What the session flushed before the claim was
    written without a guard, so claim first in a transaction.

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
    """Do as `fenced_update`, with an `AsyncSession` or `AsyncConnection`."""
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
    """Do as `fenced_claim`, with an `AsyncSession` or `AsyncConnection`."""
    return await fenced_update_async(session, target, where, token, {})


def _check_condition(where: Any) -> None:
    # `id == 1` with Python's own `id` is a bool, which SQLAlchemy would take for all or no rows.
    if not isinstance(where, ColumnElement):
        raise TypeError(f"where is a SQL condition such as Account.id == 1, not {where!r:.80}.")


def _resource(fenced: FencedTable, where: ColumnElement[bool], identity: Any) -> str:
    if identity is None:
        # Without its values, which may be confidential.
        return f"{fenced.name} where {where}"
    return f"{fenced.name} where " + " and ".join(f"{k} = {v!r}" for k, v in identity.items())
