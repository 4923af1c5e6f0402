"""
Servers and workers for the examples; a real project has them already.

The examples use the servers that the environment names: `REDLOCK_NODES` (URLs with commas between
them), `CELERY_BROKER_URL` and `CELERY_RESULT_BACKEND`. They start the others on this machine; those
end with the example, however it ends.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from celery_redlock import RedlockError
from celery_redlock.testing import LocalCluster
from celery_redlock.testing.resources import ChildGuardian

T = TypeVar("T")

TIMEOUT = 120.0
LOG_TAIL = 20
INTERRUPTED = 128 + signal.SIGINT


class Stage:
    """
    The lock nodes, broker and result store of an example, and a directory for its files.

    `nodes` are the lock nodes that the stage has started, which an example may break; None if the
    environment names others.
    """

    def __init__(self, nodes: int = 5) -> None:
        self.nodes: LocalCluster | None = None
        self._number = nodes
        self._exit = ExitStack()
        self._logs: list[Path] = []

    def __enter__(self) -> Self:
        if isinstance(sys.stdout, TextIOWrapper):
            # Lines appear at once, and in order with the output of other programs.
            sys.stdout.reconfigure(line_buffering=True)
        # Without this, warnings of Celery and the lock in this process would be silent.
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
        with self._exit:
            try:
                self._start_servers()
            except RedlockError as error:
                raise SystemExit(str(error)) from error
            except KeyboardInterrupt:
                raise SystemExit(INTERRUPTED) from None
            made = tempfile.TemporaryDirectory(prefix="celery-redlock-example-")
            self.directory = Path(self._exit.enter_context(made))
            # Kills all programs of the stage, stopped ones too, also if this process is killed.
            self._guardian = ChildGuardian(self.directory)
            self._exit.callback(self._guardian.kill)
            self._exit = self._exit.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: object, where: TracebackType | None
    ) -> None:
        # Celery's results unsubscribe when they are collected. Without their store, each of them
        # would try to connect for twenty seconds.
        traceback.clear_frames(where)
        gc.collect()
        if kind is not None and kind is not KeyboardInterrupt:
            for log in self._logs:
                print(f"\nThe end of {log.name}:\n{_tail(log)}", file=sys.stderr)
        self._exit.close()
        if kind is KeyboardInterrupt:
            raise SystemExit(INTERRUPTED)

    def start(self, *command: str, cwd: Path | None = None) -> Process:
        """Start a program that ends with this stage."""
        log = self.directory / f"{len(self._logs) + 1}-{Path(command[0]).name}.log"
        self._logs.append(log)
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - a command of the example's own
                command,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # The files of Celery's pool are removed with the directory.
                env={**os.environ, "TMPDIR": str(self.directory)},
                process_group=self._guardian.group,
            )
        return Process(process, log)

    def start_worker(
        self, app: str, processes: int = 4, cwd: Path | None = None, name: str = "celery"
    ) -> Process:
        """Start `celery -A <app> worker`, and wait until it is ready."""
        worker = self.start(
            *(sys.executable, "-m", "celery", "-A", app, "worker", f"--concurrency={processes}"),
            f"--hostname={name}@%h",
            # Messages of an earlier run, which another broker may still have.
            "--purge",
            *("--loglevel=INFO", "--without-gossip", "--without-mingle"),
            cwd=cwd,
        )
        until(lambda: " ready." in worker.log, "the worker to be ready", worker)
        print(f"A worker with {processes} processes is ready.")
        return worker

    def _start_servers(self) -> None:
        if "REDLOCK_NODES" not in os.environ:
            self.nodes = self._exit.enter_context(LocalCluster(self._number))
            self._set_variable("REDLOCK_NODES", ",".join(self.nodes.urls))
        if not {"CELERY_BROKER_URL", "CELERY_RESULT_BACKEND"} <= os.environ.keys():
            store = self._exit.enter_context(LocalCluster(1, armed=False)).urls[0]
            for number, name in enumerate(("CELERY_BROKER_URL", "CELERY_RESULT_BACKEND")):
                if name not in os.environ:
                    self._set_variable(name, store.removesuffix("0") + str(number))

    def _set_variable(self, name: str, value: str) -> None:
        os.environ[name] = value
        self._exit.callback(os.environ.pop, name)


class Process:
    """A program that was started, and what it has printed so far."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def log(self) -> str:
        """Its output so far."""
        return self._log.read_text(errors="replace")

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """Kill it, like a host that loses its power."""
        self._process.kill()
        self._process.wait()


def until(condition: Callable[[], T], what: str, *needed: Process) -> T:
    """Wait for a condition and return its true value; end the example if it never has one."""
    deadline = time.monotonic() + TIMEOUT
    while not (value := condition()):
        if any(process.status is not None for process in needed):
            raise SystemExit(f"waited for {what}, but a program that it needs has ended")
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {TIMEOUT:g} s in vain for {what}")
        time.sleep(0.05)
    return value


@contextmanager
def http_server(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run an HTTP server in threads of this process; yield its host and port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield "{}:{}".format(*server.server_address)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def expect(claim: str, seen: bool) -> None:
    """Print a claim that was seen; end the example with an error if it was not."""
    if not seen:
        raise SystemExit(f"NOT SEEN: {claim}")
    print(f"Seen: {claim}")


def most_in_any(seconds: float, grants: Iterable[tuple[float, float]]) -> int:
    """
    Return how many locks were surely granted within so many seconds, wherever these begin.

    Args:
        seconds: length of the time.
        grants: for each lock, when it was asked for and when its body began. The grant was between
            the two, so nothing slow makes it look as if there were more.
    """
    grants = list(grants)
    asked, began = sorted(first for first, _ in grants), sorted(last for _, last in grants)
    most = min(1, len(grants))
    while any(
        later - earlier < seconds for earlier, later in zip(asked, began[most:], strict=False)
    ):
        most += 1
    return most


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL:])
