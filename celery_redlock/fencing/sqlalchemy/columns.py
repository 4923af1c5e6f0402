"""
The column with the highest token, and how to find it on a mapped class or a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import BigInteger, Column, ColumnElement, Dialect, Integer, Table, inspect, or_
from sqlalchemy.orm import Mapped, Mapper, mapped_column

from celery_redlock.errors import ConfigurationError

NAME = "fencing_token"

#: A mapped class or a Core table.
Target: TypeAlias = type[Any] | Table

#: Column names (attribute names of a mapped class), or the columns themselves, to new values.
Values: TypeAlias = Mapping[Any, Any]


class FencedMixin:
    """
    Adds the column `fencing_token` to a declarative class.

    The column is 0 in rows that no holder of a lock has written, so every token may write them. For
    an existing table: `ALTER TABLE accounts ADD COLUMN fencing_token BIGINT NOT NULL DEFAULT 0`.
    """

    fencing_token: Mapped[int] = mapped_column(
        BigInteger, nullable=False, default=0, server_default="0"
    )


def fencing_column() -> Column[int]:
    """Return a new column `fencing_token` for a Core `Table`."""
    return Column(NAME, BigInteger, nullable=False, default=0, server_default="0")


@dataclass(frozen=True, slots=True, kw_only=True)
class FencedTable:
    """
    A mapped class or a table, with the parts from which statements on it are built.

    Attributes:
        entity: the class or table; statements on a mapped class keep the ORM's own criteria.
        table: the one table that statements write.
        column: its fencing column.
        token: the same column, as an attribute of a mapped class.
        mapper: the mapper of a mapped class; None for a table.
    """

    entity: Target
    table: Table
    column: Column[Any]
    token: Any
    mapper: Mapper[Any] | None

    def passes(self, token: int) -> ColumnElement[bool]:
        """Return the condition that a row has seen no newer token."""
        condition: ColumnElement[bool] = self.token <= token
        if self.column.nullable:
            # The column was added without a default, and no token has written a row with NULL yet.
            condition = or_(condition, self.token.is_(None))
        return condition

    def blocks(self, token: int) -> ColumnElement[bool]:
        """Return the condition that a row has seen a newer token, or has NULL against NOT NULL."""
        condition: ColumnElement[bool] = self.token > token
        return condition if self.column.nullable else or_(condition, self.token.is_(None))

    @property
    def keys(self) -> list[Any]:
        """The columns of the primary key, as attributes of a mapped class."""
        columns = self.table.primary_key
        if self.mapper is None:
            return list(columns)
        return [
            getattr(self.entity, self.mapper.get_property_by_column(column).key)
            for column in columns
        ]

    @property
    def core(self) -> FencedTable:
        """The same table without its mapped class."""
        return FencedTable(
            entity=self.table, table=self.table, column=self.column, token=self.column, mapper=None
        )

    @property
    def name(self) -> str:
        """The name that messages use."""
        return self.table.fullname

    def column_of(self, key: Any) -> Column[Any]:
        """Return the table's column for a key of `values`."""
        name = key if isinstance(key, str) else key.key
        found: Any
        if self.mapper is None:
            found = self.table.c.get(name)
        else:
            attribute = self.mapper.column_attrs.get(name)
            found = None if attribute is None else attribute.columns[0]
        if not isinstance(found, Column):
            raise ConfigurationError(f"{self.name} has no column {name!r}.")
        return found


def fenced_table(target: Target, dialect: Dialect) -> FencedTable:
    """
    Find the fencing column of a target.

    Raises:
        ConfigurationError: it has no such column, or it cannot be fenced.
    """
    column: Any
    if isinstance(target, Table):
        mapper, table, column = None, target, target.c.get(NAME)
    else:
        mapper = _mapper(target)
        table = _only_table(mapper)
        attribute = mapper.column_attrs.get(NAME)
        column = None if attribute is None else attribute.columns[0]
    if not isinstance(column, Column):
        raise ConfigurationError(
            f"{table.fullname} has no column {NAME!r}. Add FencedMixin to the class or "
            "fencing_column() to the table, and the column to the database."
        )
    token = column if mapper is None else getattr(target, NAME)
    fenced = FencedTable(entity=target, table=table, column=column, token=token, mapper=mapper)
    _check_width(fenced, dialect)
    return fenced


def checked_values(fenced: FencedTable, values: Values | None) -> Values:
    """Return the values to write; raise if they are missing or name the fencing column."""
    if values is None:
        raise TypeError("values is missing: a mapping of columns to their new values.")
    for key in values:
        if (key if isinstance(key, str) else getattr(key, "key", None)) == NAME:
            raise ConfigurationError(
                f"{NAME} is not a value to write to {fenced.name}: give token=…, or omit it where "
                "the code runs under a lease."
            )
    return values


def _mapper(target: Any) -> Mapper[Any]:
    mapper = inspect(target, raiseerr=False)
    if not isinstance(mapper, Mapper) or mapper.class_ is not target:
        raise ConfigurationError(f"{target!r} is neither a mapped class nor a Table.")
    return mapper


def _only_table(mapper: Mapper[Any]) -> Table:
    """Return a mapped class's only table: one UPDATE cannot compare in one and write in another."""
    table = mapper.local_table
    if len(mapper.tables) == 1 and isinstance(table, Table):
        return table
    names = ", ".join(str(part) for part in mapper.tables) or str(table)
    raise ConfigurationError(
        f"{mapper.class_.__name__} is spread over several tables ({names}), and one UPDATE writes "
        "only one. Give the class that has the fencing column and the columns to write in its own "
        "table, or the table itself (Class.__table__)."
    )


def _check_width(fenced: FencedTable, dialect: Dialect) -> None:
    kind = fenced.column.type
    narrow = isinstance(kind, Integer) and not isinstance(kind, BigInteger)
    # SQLite's integers have 64 bits, whatever they are declared as.
    if narrow and dialect.name != "sqlite":
        raise ConfigurationError(
            f"{fenced.name}.{NAME} is {kind!r}: tokens have 53 bits. Make it a BIGINT, and a "
            "BigInteger in the model."
        )
