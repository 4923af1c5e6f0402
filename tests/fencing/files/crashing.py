"""Children that are killed while they write to a guarded file."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from celery_redlock.fencing import FileFence

_STEPS = {"open", "os.rename", "os.remove", "os.truncate", "fcntl.flock", "os.chmod"}


def run_in_child(work: Callable[[], None]) -> int:
    """Run something in a forked child; return its exit code, negative for a signal."""
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    assert child.exitcode is not None
    return child.exitcode


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Run something in a child that is killed before its n-th file access; tell whether."""

    def count_and_die() -> None:
        left = step

        def hook(event: str, _: object) -> None:
            nonlocal left
            if event not in _STEPS:
                return
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

        sys.addaudithook(hook)
        work()
        # What the interpreter does at its end is no part of it.
        os._exit(0)

    return run_in_child(count_and_die) == -signal.SIGKILL


def write_on_and_on(path: Path, first: int, size: int) -> None:
    """Write with ever newer tokens, each time a content that is made of its token."""
    fence = FileFence(path, fsync=False)
    for token in range(first, first + 1_000_000):
        fence.write(filled(token, size), token)


def filled(token: int, size: int) -> bytes:
    """Return the content that belongs to a token."""
    return b"%016d\n" % token * size


def kill_after(seconds: float, work: Callable[[], None]) -> None:
    """Run something in a child and kill it a while after it has begun."""
    context = multiprocessing.get_context("fork")
    begun = context.Event()

    def begin() -> None:
        begun.set()
        work()

    child = context.Process(target=begin)
    child.start()
    begun.wait()
    time.sleep(seconds)
    child.kill()
    child.join()
    assert child.exitcode == -signal.SIGKILL
