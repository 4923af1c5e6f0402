"""
The cost of a fence: a fenced write against a bare one with the same content.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import redis

from bench.measure import Operation, Rounds, compare, time_each
from bench.results import Result, in_microseconds, ratios
from celery_redlock.fencing import FileFence, RedisFence
from celery_redlock.testing import LocalCluster

_CONTENT = b"x" * 1000
_TOKEN = 7


def guards(quick: bool) -> list[Result]:
    """Write to Redis and to a file, with the guard and without."""
    rounds = Rounds(count=10 if quick else 40, operations=50)
    with LocalCluster(1) as nodes, redis.Redis.from_url(nodes.urls[0]) as client:
        in_redis = _in_redis(client, rounds)
    with tempfile.TemporaryDirectory() as directory:
        in_file = _in_file(Path(directory), rounds)
    return [*in_redis, *in_file]


def _in_redis(client: redis.Redis, rounds: Rounds) -> list[Result]:
    fence = RedisFence(client)
    tokens = itertools.count(1)

    def queued() -> redis.client.Pipeline:
        pipe = client.pipeline()
        for _ in range(10):
            pipe.set("bare", _CONTENT)
        return pipe

    return [
        _result(
            "RedisFence.set / SET",
            lambda: fence.set("guarded", _CONTENT, _TOKEN),
            lambda: client.set("bare", _CONTENT),
            rounds,
        ),
        _result(
            "RedisFence.set with a newer token each time / SET",
            lambda: fence.set("rising", _CONTENT, next(tokens)),
            lambda: client.set("bare", _CONTENT),
            rounds,
        ),
        _result(
            "RedisFence.run of a pipeline of 10 SETs / its execute",
            lambda: fence.run(queued(), ["bare"], (), _TOKEN),
            lambda: queued().execute(),
            rounds,
        ),
    ]


def _in_file(directory: Path, rounds: Rounds) -> list[Result]:
    results = []
    for fsync in (True, False):
        fence = FileFence(directory / f"guarded-{fsync}", fsync=fsync)
        results.append(
            _result(
                f"FileFence.write / an atomic replacement, {'with' if fsync else 'without'} fsync",
                lambda fence=fence: fence.write(_CONTENT, _TOKEN),  # type: ignore[misc]
                _replacing(directory / f"bare-{fsync}", fsync),
                rounds,
            )
        )
    return results


def _replacing(path: Path, fsync: bool) -> Callable[[], None]:
    """Return what replaces a file as a whole, as careful people do without a guard."""
    temporary = path.with_name(path.name + ".new")

    def replace() -> None:
        with temporary.open("wb") as file:
            file.write(_CONTENT)
            if fsync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if fsync:
            directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(directory)
            os.close(directory)

    return replace


def _result(what: str, guarded: Operation, bare: Operation, rounds: Rounds) -> Result:
    time_each(guarded, rounds.operations)
    time_each(bare, rounds.operations)
    pairs = compare(guarded, bare, rounds)
    return Result(
        row="guards",
        what=what,
        goal=None,
        values=ratios(pairs),
        detail=in_microseconds("guarded", "bare", pairs),
    )
