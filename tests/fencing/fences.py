"""Every guard behind one face, so that one suite runs on all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import redis
import redis.asyncio

from celery_redlock.fencing import (
    AsyncRedisFence,
    FileFence,
    RedisFence,
    S3Fence,
)
from tests.fencing.s3.stores import conforming_store, moto_store

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
    """

    name: str
    write: Callable[[bytes, int | None], None]
    read: Callable[[], bytes | None]
    seen: Callable[[], int | None]
    spoil: Callable[[], object]
    claim: Callable[[int | None], object] = _cannot
    forget: Callable[[], object] = _cannot


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
def file(_url: str, directory: Path) -> Iterator[Opener]:
    def at(key: str) -> Guarded:
        path = directory / key
        fence = FileFence(path)
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


def _s3(client: Any, key: str) -> Guarded:
    fence = S3Fence(client, "bank")

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


@contextmanager
def s3_moto(_url: str, _directory: Path) -> Iterator[Opener]:
    with moto_store() as client:
        yield partial(_s3, client)


@contextmanager
def s3_conforming(_url: str, _directory: Path) -> Iterator[Opener]:
    with conforming_store() as client:
        yield partial(_s3, client)


KINDS: dict[str, Kind] = {
    "redis": redis_guarded,
    "redis-text": redis_text,
    "redis-pipeline": redis_pipeline,
    "redis-asyncio": redis_asyncio,
    "redis-asyncio-pipeline": redis_asyncio_pipeline,
    "file": file,
    "s3-moto": s3_moto,
    "s3-conforming": s3_conforming,
}

CLAIMING = [name for name in KINDS if not name.startswith("s3")]
