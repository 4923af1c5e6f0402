"""Every guard behind one face, so that one suite runs on all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis
import redis.asyncio
from sqlalchemy import create_engine, event, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from celery_redlock.fencing import (
    AsyncRedisFence,
    FileFence,
    RedisFence,
    S3Fence,
)
from celery_redlock.fencing.sqlalchemy import FencedMixin, fenced_claim, fenced_update

T = TypeVar("T")


def _cannot(*_: object) -> None:
    raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """
    One guarded thing.

    Attributes:
        name: what errors call it.
        write: replaces the content.
        read: returns the content, None where there is none.
        seen: returns the highest token.
        spoil: puts garbage where the highest token is kept.
        claim: lets it see a token; an object store cannot.
        forget: removes the record; an object's goes with the object.
        overwrite: replaces the content past the fence.
    """

    name: str
    write: Callable[[bytes, int | None], None]
    read: Callable[[], bytes | None]
    seen: Callable[[], int | None]
    spoil: Callable[[], object] = _cannot
    claim: Callable[[int | None], object] = _cannot
    forget: Callable[[], object] = _cannot
    overwrite: Callable[[bytes], object] = _cannot


Opener = Callable[[str], Guarded]
Kind = Callable[[str, Path], AbstractContextManager[Opener]]


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


@contextmanager
def redis_guarded(url: str, _directory: Path, **options: Any) -> Iterator[Opener]:
    with redis.Redis.from_url(url, **options) as client:
        fence = RedisFence(client)

        def at(key: str) -> Guarded:
            record = f"redlock-meta:seen:{{{key}}}"
            return Guarded(
                name=key,
                write=lambda data, token: fence.set(key, data, token),
                read=lambda: _bytes(fence.get(key)),
                seen=lambda: fence.seen(key),
                claim=lambda token: fence.claim(key, token),
                spoil=lambda: client.set(record, "seven"),
                forget=lambda: client.delete(record),
                overwrite=lambda data: client.set(key, data),
            )

        yield at


@contextmanager
def redis_text(url: str, directory: Path) -> Iterator[Opener]:
    with redis_guarded(url, directory, decode_responses=True) as at:
        yield at


@contextmanager
def redis_pipeline(url: str, directory: Path) -> Iterator[Opener]:
    with redis_guarded(url, directory) as plain, redis.Redis.from_url(url) as client:
        fence = RedisFence(client)

        def at(key: str) -> Guarded:
            def write(data: bytes, token: int | None) -> None:
                fence.run(client.pipeline().set(key, data), [key], (), token)

            return replace(
                plain(key),
                write=write,
                claim=lambda token: fence.run(client.pipeline(), [key], (), token),
            )

        yield at


@contextmanager
def redis_asyncio(url: str, directory: Path, *, in_pipeline: bool = False) -> Iterator[Opener]:
    with redis_guarded(url, directory) as blocking, asyncio.Runner() as runner:
        client = redis.asyncio.Redis.from_url(url)
        fence = AsyncRedisFence(client)

        def run(coroutine: Coroutine[Any, Any, T]) -> T:
            # A runner has a context of its own, in which no lease would be known.
            return runner.run(coroutine, context=copy_context())

        def at(key: str) -> Guarded:
            def write(data: bytes, token: int | None) -> None:
                if in_pipeline:
                    run(fence.run(client.pipeline().set(key, data), [key], (), token))
                else:
                    run(fence.set(key, data, token))

            return replace(
                blocking(key),
                write=write,
                read=lambda: run(fence.get(key)),
                seen=lambda: run(fence.seen(key)),
                claim=lambda token: run(fence.claim(key, token)),
            )

        yield at
        run(client.aclose())


@contextmanager
def redis_asyncio_pipeline(url: str, directory: Path) -> Iterator[Opener]:
    with redis_asyncio(url, directory, in_pipeline=True) as at:
        yield at


@contextmanager
def file(_url: str, directory: Path, **options: Any) -> Iterator[Opener]:
    def at(key: str) -> Guarded:
        path = directory / key
        fence = FileFence(path, **options)
        record = directory / f"{key}.redlock-token"
        return Guarded(
            name=str(path),
            write=fence.write,
            read=lambda: fence.read() if path.exists() else None,
            seen=fence.seen,
            claim=fence.claim,
            spoil=lambda: record.write_text("seven\n"),
            forget=record.unlink,
        )

    yield at


class Base(DeclarativeBase):
    pass


class Row(FencedMixin, Base):
    __tablename__ = "guarded"

    key: Mapped[str] = mapped_column(primary_key=True)
    content: Mapped[bytes | None]


@contextmanager
def rows(url: str, _directory: Path) -> Iterator[Opener]:
    """Every call is a transaction of its own, which is committed even if the call is refused."""
    # Writers of SQLite wait for each other.
    sqlite = url.startswith("sqlite")
    engine = create_engine(url, connect_args={"timeout": 60.0} if sqlite else {})
    if sqlite:
        # Nobody cuts the power here, and most of the time would go into waiting for the disk.
        event.listen(engine, "connect", lambda raw, _: raw.execute("PRAGMA synchronous = OFF"))
    Base.metadata.create_all(engine)

    def at(key: str) -> Guarded:
        where = Row.key == key

        def run(call: Callable[..., object], *args: Any) -> None:
            with Session(engine) as session:
                try:
                    call(session, *args)
                finally:
                    session.commit()

        def stored() -> Row:
            with Session(engine) as session:
                return session.get(Row, key)

        with Session(engine) as session, session.begin():
            if session.get(Row, key) is None:
                session.add(Row(key=key))
        return Guarded(
            name=f"guarded where key = '{key}'",
            write=lambda data, token: run(fenced_update, Row, where, token, {"content": data}),
            read=lambda: stored().content,
            seen=lambda: stored().fencing_token,
            claim=lambda token: run(fenced_claim, Row, where, token),
            forget=lambda: run(Session.execute, update(Row).values(fencing_token=0)),
            overwrite=lambda data: run(Session.execute, update(Row).values(content=data)),
        )

    yield at
    engine.dispose()


@contextmanager
def moto_store() -> Iterator[Any]:
    """Give a client of a fresh moto with one bucket, `bank`."""
    # Not at the top: most processes that import this write to no object.
    import boto3
    from moto import mock_aws

    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="bank")
        yield client
        client.close()


@contextmanager
def s3(_url: str, _directory: Path) -> Iterator[Opener]:
    with moto_store() as client:
        fence = S3Fence(client, "bank")

        def at(key: str) -> Guarded:
            def write(data: bytes, token: int | None) -> None:
                fence.put(key, data, token)

            def read() -> bytes | None:
                try:
                    return fence.get(key)
                except client.exceptions.NoSuchKey:
                    return None

            def spoil() -> None:
                metadata = {"redlock-fencing-token": "seven"}
                client.put_object(Bucket="bank", Key=key, Body=b"", Metadata=metadata)

            return Guarded(
                name=f"s3://bank/{key}",
                write=write,
                read=read,
                seen=lambda: fence.seen(key),
                spoil=spoil,
            )

        yield at


KINDS: dict[str, Kind] = {
    "redis": redis_guarded,
    "redis-text": redis_text,
    "redis-pipeline": redis_pipeline,
    "redis-asyncio": redis_asyncio,
    "redis-asyncio-pipeline": redis_asyncio_pipeline,
    "file": file,
    "sqlite": rows,
    "postgresql": rows,
    "s3": s3,
}


def kinds(*, without: tuple[str, ...] = ()) -> list[Any]:
    """Return kinds as parameters of a test; PostgreSQL comes from Debian's package."""
    return [
        pytest.param(kind, marks=pytest.mark.system) if kind == "postgresql" else kind
        for kind in KINDS
        if not kind.startswith(without)
    ]


@contextmanager
def guarded_at(kind: Kind, url: str, directory: Path, key: str = "account:7") -> Iterator[Guarded]:
    """Give one guarded thing."""
    with kind(url, directory) as at:
        yield at(key)
