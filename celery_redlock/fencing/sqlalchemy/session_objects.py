"""
Objects of a fenced table that a session loaded before its transaction passed the fence.

They show rows as they were then, and the session keeps serving them: `get()` does not query the
database, and `select()`, even with `with_for_update()`, does not overwrite loaded attributes. Code
that reads them after the claim sees a state from before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Connection, Table, and_, false, or_, select, true
from sqlalchemy.orm import InstanceState, Mapper
from sqlalchemy.orm.exc import UnmappedColumnError

from celery_redlock.errors import ConfigurationError
from celery_redlock.fencing.sqlalchemy.columns import FencedTable
from celery_redlock.fencing.sqlalchemy.execution import SyncSession, run

#: The values of a table's primary key; None where the session cannot know them.
KeyValues: TypeAlias = tuple[Any, ...] | None

#: Databases limit the parameters of one statement.
_ROWS_OF_ONE_SELECT = 500

#: Databases whose plain SELECT may show an older state than the one that UPDATE sees.
_STALE_PLAIN_READS = frozenset({"mysql", "mariadb"})


def loaded_objects(session: SyncSession, table: Table) -> dict[InstanceState[Any], KeyValues]:
    """Return the session's objects of a table, each with the primary key of its row."""
    if isinstance(session, Connection):
        return {}
    places: dict[Mapper[Any], list[int] | None] = {}
    objects: dict[InstanceState[Any], KeyValues] = {}
    for state in session.identity_map.all_states():
        mapper, identity = state.mapper, state.identity
        if table not in mapper.tables or identity is None:
            continue
        if mapper not in places:
            places[mapper] = _key_positions(mapper, table)
        found = places[mapper]
        objects[state] = None if found is None else tuple(identity[place] for place in found)
    return objects


def pending_changes(
    session: SyncSession, objects: Mapping[InstanceState[Any], KeyValues]
) -> dict[KeyValues, str]:
    """Return the rows whose objects have unflushed changes, each with a description."""
    if isinstance(session, Connection) or not (session.dirty or session.deleted):
        return {}
    deleted = session.deleted
    changes = {}
    for state, row in objects.items():
        if text := ", ".join(sorted(set(_pending_changes_of(state, deleted)))):
            changes[row] = text
    return changes


def rows_in(
    columns: Sequence[ColumnElement[Any]], rows: Collection[KeyValues]
) -> ColumnElement[bool]:
    """Return the condition that a row is one of `rows`; an unknown key matches any row."""
    known = [row for row in rows if row is not None]
    if len(known) < len(rows):
        return true()
    if len(columns) == 1:
        return columns[0].in_([value for (value,) in known]) if known else false()
    return or_(
        false(), *(and_(*(c == v for c, v in zip(columns, row, strict=True))) for row in known)
    )


def refuse_pending(
    session: SyncSession,
    fenced: FencedTable,
    where: ColumnElement[bool],
    changes: Mapping[KeyValues, str],
) -> None:
    """Raise if objects of matching rows have pending changes."""
    if not changes:
        return
    matching = select(*fenced.keys).where(where, rows_in(fenced.keys, changes))
    found = [tuple(row) for row in run(session, matching)]
    if not found:
        return
    names = [f"{text} of row {row}" for row, text in changes.items() if row is None or row in found]
    raise ConfigurationError(
        f"The session holds unflushed changes to rows of {fenced.name}: "
        f"{'; '.join(names):.300}. They were made before this transaction passed the fence, so "
        "they may depend on values that another holder has replaced since. Nothing was written. "
        "Claim first, then load and change; session.expire(object) drops an object's changes."
    )


def refresh(
    session: SyncSession,
    objects: Mapping[InstanceState[Any], KeyValues],
    written: Collection[KeyValues] | None,
    changes: Mapping[KeyValues, str],
) -> None:
    """
    Read the objects of written rows again, with the related objects that the refresh cascades to.

    Args:
        session: their session.
        objects: the result of `loaded_objects`.
        written: the rows that the statement has written; None if unknown, which means any.
        changes: the result of `pending_changes`; the objects of its rows are not read.
    """
    if isinstance(session, Connection):
        return
    identities: dict[Mapper[Any], list[tuple[Any, ...]]] = defaultdict(list)
    for state, row in objects.items():
        loaded, identity = state.obj(), state.identity
        if loaded is None or identity is None or row in changes:
            continue
        if written is None or row is None or row in written:
            # This also expires the relationships that cascade "refresh-expire".
            session.expire(loaded)
            identities[state.mapper].append(identity)
    for mapper, keys in identities.items():
        # Read them now, since an async session cannot load an attribute on access. This fills in
        # what is expired, and leaves the pending changes of other objects alone.
        remaining = iter(keys)
        while some := list(islice(remaining, _ROWS_OF_ONE_SELECT)):
            rows = select(mapper.class_).where(rows_in(mapper.primary_key, some))
            if session.get_bind(mapper).dialect.name in _STALE_PLAIN_READS:
                rows = rows.with_for_update(of=mapper.class_)
            run(session, rows).unique().all()


def _key_positions(mapper: Mapper[Any], table: Table) -> list[int] | None:
    """Return the positions of the table's key in an object's identity, None if it lacks the key."""
    try:
        # By attributes, since a subclass in a table of its own has a second column for the same
        # value.
        names = [mapper.get_property_by_column(c).key for c in mapper.primary_key]
        return [names.index(mapper.get_property_by_column(c).key) for c in table.primary_key]
    except (ValueError, UnmappedColumnError):
        return None


def _pending_changes_of(state: InstanceState[Any], deleted: Collection[object]) -> Iterator[str]:
    """Yield the changes of an object, and of the objects that expire together with it."""
    below = (found[2] for found in state.mapper.cascade_iterator("refresh-expire", state))
    for part in (state, *below):
        name = part.mapper.class_.__name__
        if part.obj() in deleted:
            yield f"{name} (to be deleted)"
        if part.modified:
            yield from (f"{name}.{key}" for key in part.committed_state)
            if not part.committed_state:
                yield f"a relationship of {name}"
