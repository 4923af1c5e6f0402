"""
What all unit tests share: they start no process and open no socket.

So they take seconds, all of them, and none depends on how busy the machine is. A test that needs a
process or a socket is in `tests/integration`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
from celery import signals

from celery_redlock.transport import memory

#: What a unit test may not do, by the names of Python's audit events.
REFUSED = {
    "os.exec": "starts a process",
    "os.fork": "starts a process",
    "os.forkpty": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.system": "starts a process",
    "subprocess.Popen": "starts a process",
    "socket.bind": "opens a socket",
    "socket.connect": "opens a socket",
    "socket.getaddrinfo": "looks up a host",
}

_done: list[str] = []
_is_watching = False
#: Threads that ran before the test began, and those that they start: of a failed test that closed
#: nothing. They may do everything.
_older: WeakSet[threading.Thread] = WeakSet()


class NotAUnitTestError(Exception):
    """A test does what no unit test may."""


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if not _is_watching or event not in REFUSED or threading.current_thread() in _older:
        return
    what = f"a unit test {REFUSED[event]} ({event}{arguments!r:.200})"
    _done.append(what)
    raise NotAUnitTestError(f"{what}: move it to tests/integration")


def _start(thread: threading.Thread) -> None:
    if threading.current_thread() in _older:
        _older.add(thread)
    _start_thread(thread)


sys.addaudithook(_refuse)
_start_thread = threading.Thread.start
threading.Thread.start = _start


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Watch what a test of this folder does, its fixtures and its threads included."""
    global _is_watching  # the hook cannot be removed, and other tests run in this process as well
    _older.clear()
    _older.update(set(threading.enumerate()) - {threading.current_thread()})
    _is_watching = Path(__file__).parent in item.path.parents
    try:
        return (yield)
    finally:
        _is_watching = False


@pytest.fixture(autouse=True)
def no_process_and_no_socket() -> Iterator[None]:
    """Fail a test also where the code that it runs has swallowed the refusal."""
    _done.clear()
    yield
    assert not _done, f"{_done[0]}: move it to tests/integration"


@pytest.fixture(autouse=True)
def no_nodes_of_other_tests() -> Iterator[None]:
    """Have no `memory://` URL name a node of an earlier test, which may hold locks still."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(memory, "_nodes", {})
        yield


@pytest.fixture(autouse=True)
def unmarked_messages() -> None:
    """
    Have no message marked for the app of an earlier test.

    Signals are the process's: an app with `redlock_dedupe` has all messages marked from then on,
    and the first message of a process looks for such apps, even where nobody holds one any more.
    """
    for handler in ("before_task_publish", "first_publish"):
        signals.before_task_publish.disconnect(dispatch_uid=f"celery_redlock.{handler}")
