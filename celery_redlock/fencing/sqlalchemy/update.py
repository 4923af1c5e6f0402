"""
Updating rows that exist.
"""

from __future__ import annotations

from typing import Any, cast, overload

from sqlalchemy import ColumnElement, CursorResult, func, select, update

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
    look,
    missing,
    refuse,
    run,
)
from celery_redlock.fencing.tokens import token_or_current

# Where SELECT … FOR UPDATE keeps matching rows as they are until the UPDATE.
_ROW_LOCKING = frozenset({"postgresql", "mysql", "mariadb", "oracle"})


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
    several rows, they are all written or none is: the rows are locked and looked at first
    (on SQLite the same statement looks).

    Objects of the session that were loaded before show the new values. Changes that are pending
    in the session are not flushed before the guard has let the transaction through.

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
        ConfigurationError: the target cannot be guarded.
    """
    token = token_or_current(token)
    dialect = dialect_of(session, target)
    fenced = fenced_table(target, dialect)
    values = checked_values(fenced, values)
    _check_condition(where)
    identity = identity_in(where, fenced)
    resource = _resource(fenced, where, identity)
    condition, expected = fenced.passes(token), 1
    with fence_first(session):
        if identity is None and dialect.name in _ROW_LOCKING:
            seen = look(session, fenced, where)
            refuse(seen, fenced, resource, token)
            expected = max(1, seen.rows)
        elif identity is None:
            newest = select(func.coalesce(func.max(fenced.token), 0)).where(where)
            # Its table is the one that is updated, but all matching rows of it.
            condition &= newest.correlate(None).scalar_subquery() <= token
        statement = (
            update(fenced.entity).where(where, condition).values({**values, fenced.token: token})
        )
        hit = cast("CursorResult[Any]", run(session, statement)).rowcount
        if hit < 0:
            raise ConfigurationError(
                f"{dialect.name}+{dialect.driver} does not tell how many rows an UPDATE has hit, "
                "so nobody knows whether it was let through. Roll back, and use another driver."
            )
        if hit < expected:
            refuse(look(session, fenced, where), fenced, resource, token)
    if not hit:
        raise missing(resource)
    return hit


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
    It is an UPDATE like any other: columns with `onupdate` change.

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
