"""
Programs in processes of their own that find Celery and this package loaded.

To load them takes a second of a processor; here one process does so for all, and forks for each
program: `python -m tests.support.forked SOCKET MODULE...`. Limit: what a program does while it
imports these modules is not seen. It gets its own arguments, environment, directory and output, and
ends as an interpreter ends.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from tests.support.waiting import TIMEOUT

#: Without the command, which loads what other packages add to it.
CELERY = (
    *("celery.app.amqp", "celery.app.task", "celery.backends.cache", "kombu.transport.redis"),
    *("celery.bin.amqp", "celery.bin.beat", "celery.bin.events", "celery.bin.worker"),
)
PACKAGE = (*CELERY, "celery.bin.celery", "celery_redlock.cli", "celery_redlock.tasks", "rich.live")

#: Bytes of the longest request.
_MOST = 1_000_000


class Program:
    """A program that runs, and its end."""

    def __init__(self, reports: socket.socket) -> None:
        self._reports = reports
        self.pid = int(reports.recv(100))
        self._status: int | None = None

    def wait(self, timeout: float = 3 * TIMEOUT) -> int:
        """Return its exit status, as `subprocess` has it."""
        if self._status is None:
            self._reports.settimeout(timeout)
            self._status = int(self._reports.recv(100))
            self._reports.close()
        return self._status

    def poll(self) -> int | None:
        """Return its exit status once it has ended."""
        with contextlib.suppress(BlockingIOError):
            return self.wait(0)
        return None

    def send_signal(self, number: int) -> None:
        """Send it a signal while it runs."""
        if self._status is None:
            os.kill(self.pid, number)

    def end(self) -> None:
        """Kill it, and wait until it has ended."""
        self.send_signal(signal.SIGKILL)
        self.wait()


def start(
    *arguments: str,
    stdin: int = subprocess.DEVNULL,
    stdout: int,
    stderr: int = 2,
    loaded: tuple[str, ...] = PACKAGE,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Program:
    """Start what `python ARGUMENT...` would, which are `-c CODE` or `-m MODULE` and words."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    request = {
        "arguments": arguments,
        "cwd": str(cwd or Path.cwd()),
        "env": dict(os.environ if env is None else env),
    }
    with theirs, open(os.devnull) as nothing:
        files = [nothing.fileno() if stdin == subprocess.DEVNULL else stdin, stdout, stderr]
        socket.send_fds(_server(loaded), [json.dumps(request).encode()], [theirs.fileno(), *files])
    return Program(ours)


def run(*arguments: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    """Start a program, wait for its end, and return what it wrote."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        files = {"stdout": out.fileno(), "stderr": err.fileno()}
        status = start(*arguments, **{**files, **options}).wait()
        out.seek(0)
        err.seek(0)
        done = subprocess.CompletedProcess(arguments, status, out.read(), err.read())
    assert status == 0 or not check, done.stdout + done.stderr
    return done


@contextlib.contextmanager
def reading(*arguments: str, **options: Any) -> Iterator[tuple[Program, IO[str]]]:
    """Start a program and read what it writes; kill it at the end."""
    ours, theirs = os.pipe()
    with open(ours) as written:
        with open(theirs, "w") as end:
            program = start(*arguments, stdout=end.fileno(), **options)
        try:
            yield program, written
        finally:
            program.end()


@functools.cache
def _server(modules: tuple[str, ...]) -> socket.socket:
    """Start the process that forks; it ends when this one does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        number = theirs.fileno()
        command = [sys.executable, "-m", "tests.support.forked", str(number), *modules]
        server = subprocess.Popen(command, pass_fds=[number])
    atexit.register(lambda: (ours.close(), server.wait()))
    return ours


def _serve(asked: socket.socket) -> dict[str, Any]:
    """Fork for each request; return in the process that is to run it."""
    running = 0
    while True:
        request, files, _, _ = socket.recv_fds(asked, _MOST, 4)
        if not request:
            sys.exit()
        while running and os.waitpid(-1, os.WNOHANG)[0]:
            running -= 1
        if os.fork() == 0:
            break
        running += 1
        for file in files:
            os.close(file)
    asked.close()
    reports, *streams = files
    pid = os.fork()
    if pid:
        _report_on(pid, reports, streams)
    os.close(reports)
    for number, file in enumerate(streams):
        os.dup2(file, number)
        os.close(file)
    found: dict[str, Any] = json.loads(request)
    return found


def _report_on(pid: int, reports: int, streams: list[int]) -> None:
    """Report a program's start and its end, and end with it."""
    for file in (0, 1, 2, *streams):
        os.close(file)
    os.write(reports, str(pid).encode())
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(reports, str(status).encode())
    os._exit(0)


def _run(arguments: list[str], cwd: str, env: dict[str, str]) -> None:
    """Do what an interpreter does with its arguments."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = [cwd, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    time.tzset()
    sys.stdin = os.fdopen(0, closefd=False)
    at_once = bool(env.get("PYTHONUNBUFFERED"))
    written = os.fdopen(1, "wb", 0 if at_once else -1, closefd=False)
    sys.stdout = io.TextIOWrapper(written, line_buffering=os.isatty(1), write_through=at_once)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    how, what, *words = arguments
    sys.argv = [how, *words]
    if how == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), main.__dict__)


if __name__ == "__main__":
    _socket, *_modules = sys.argv[1:]
    for _name in _modules:
        importlib.import_module(_name)
    gc.freeze()
    _run(**_serve(socket.socket(fileno=int(_socket))))
