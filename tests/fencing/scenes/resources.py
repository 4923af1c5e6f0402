"""One balance in different places, each read and written with its guard and without."""

from __future__ import annotations

from abc import ABC, abstractmethod

import redis
from sqlalchemy import create_engine, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from celery_redlock.fencing import RedisFence
from celery_redlock.fencing.sqlalchemy import FencedMixin, fenced_claim, fenced_update


class Base(DeclarativeBase):
    pass


class Balance(FencedMixin, Base):
    __tablename__ = "scene_balances"

    name: Mapped[str] = mapped_column(primary_key=True)
    amount: Mapped[int]


class Resource(ABC):
    """A balance; the guarded methods take the token from the current lease."""

    @abstractmethod
    def create(self, amount: int) -> None:
        """Set the balance up, without any token."""

    @abstractmethod
    def read(self) -> int:
        """Return the balance."""

    @abstractmethod
    def write(self, amount: int) -> None:
        """Set the balance, as if nobody else ever did."""

    @abstractmethod
    def claim(self) -> None:
        """Announce the token before the balance is read."""

    @abstractmethod
    def guarded_write(self, amount: int) -> None:
        """Set the balance unless a newer token has been seen."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections."""


class Row(Resource):
    """In a row of a table."""

    def __init__(self, url: str, name: str) -> None:
        self._engine = create_engine(url)
        self._name = name
        self._where = Balance.name == name

    def create(self, amount: int) -> None:
        Base.metadata.create_all(self._engine)
        with Session(self._engine) as session, session.begin():
            session.add(Balance(name=self._name, amount=amount))

    def read(self) -> int:
        with Session(self._engine) as session:
            return session.get(Balance, self._name).amount

    def write(self, amount: int) -> None:
        with Session(self._engine) as session, session.begin():
            session.execute(update(Balance).where(self._where).values(amount=amount))

    def claim(self) -> None:
        with Session(self._engine) as session, session.begin():
            fenced_claim(session, Balance, self._where)

    def guarded_write(self, amount: int) -> None:
        with Session(self._engine) as session, session.begin():
            fenced_update(session, Balance, self._where, values={"amount": amount})

    def close(self) -> None:
        self._engine.dispose()


class Key(Resource):
    """In a key of a Redis server."""

    def __init__(self, url: str, name: str) -> None:
        self._client = redis.Redis.from_url(url)
        self._fence = RedisFence(self._client)
        self._name = f"balance:{name}"

    def create(self, amount: int) -> None:
        self.write(amount)

    def read(self) -> int:
        return int(self._client.get(self._name))

    def write(self, amount: int) -> None:
        self._client.set(self._name, amount)

    def claim(self) -> None:
        self._fence.claim(self._name)

    def guarded_write(self, amount: int) -> None:
        self._fence.set(self._name, amount)

    def close(self) -> None:
        self._client.close()


def resource_at(url: str, name: str) -> Resource:
    """Return the balance of this name at a database's or server's URL."""
    return Key(url, name) if url.startswith("redis") else Row(url, name)
