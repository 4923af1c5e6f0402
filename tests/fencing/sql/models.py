"""Tables of the shapes that people have."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Integer, String, Table
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from celery_redlock.fencing.sqlalchemy import FencedMixin, fencing_column


class Base(DeclarativeBase):
    pass


class Account(FencedMixin, Base):
    __tablename__ = "accounts"

    id: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[str] = mapped_column(String(40), default="nobody")
    balance: Mapped[int] = mapped_column(default=0)


class Seat(FencedMixin, Base):
    """With a composite key."""

    __tablename__ = "seats"

    row: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    guest: Mapped[str | None]


class Renamed(FencedMixin, Base):
    """With attributes that are not named as their columns, and a unique name."""

    __tablename__ = "renamed"

    id: Mapped[int] = mapped_column("pk", primary_key=True)
    name: Mapped[str] = mapped_column("label", String(40), unique=True)
    size: Mapped[int] = mapped_column("amount", default=0)


class Employee(FencedMixin, Base):
    """With a subclass in the same table and one in a table of its own."""

    __tablename__ = "employees"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "employee"}

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(20))
    salary: Mapped[int] = mapped_column(default=0)


class Manager(Employee):
    __mapper_args__ = {"polymorphic_identity": "manager"}


class Pilot(Employee):
    __tablename__ = "pilots"
    __mapper_args__ = {"polymorphic_identity": "pilot"}

    id: Mapped[int] = mapped_column(ForeignKey("employees.id"), primary_key=True)
    hours: Mapped[int] = mapped_column(default=0)


class VersionedValue(FencedMixin, Base):
    """Which writers without a lock change as well, and notice each other."""

    __tablename__ = "versioned"

    id: Mapped[int] = mapped_column(primary_key=True)
    size: Mapped[int] = mapped_column(default=0)
    version: Mapped[int] = mapped_column()
    __mapper_args__ = {"version_id_col": version}


class Folder(FencedMixin, Base):
    """With rows of another table that belong to it."""

    __tablename__ = "folders"

    id: Mapped[int] = mapped_column(primary_key=True)
    entries: Mapped[list[Entry]] = relationship(cascade="all, delete-orphan")


class Entry(Base):
    __tablename__ = "entries"

    id: Mapped[int] = mapped_column(primary_key=True)
    size: Mapped[int] = mapped_column(default=0)
    folder_id: Mapped[int] = mapped_column(ForeignKey("folders.id"))


class Unfenced(Base):
    __tablename__ = "unfenced"

    id: Mapped[int] = mapped_column(primary_key=True)


class Old(Base):
    """Whose fencing column was added without a default."""

    __tablename__ = "old"

    id: Mapped[int] = mapped_column(primary_key=True)
    size: Mapped[int] = mapped_column(default=0)
    fencing_token: Mapped[int | None] = mapped_column(BigInteger)


class Narrow(Base):
    """Whose fencing column is too narrow for tokens."""

    __tablename__ = "narrow"

    id: Mapped[int] = mapped_column(primary_key=True)
    fencing_token: Mapped[int] = mapped_column(Integer, default=0)


plain_table = Table(
    "plain_rows",
    Base.metadata,
    Column("id", Integer, primary_key=True),
    Column("size", Integer, default=0),
    fencing_column(),
)
