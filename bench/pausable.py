"""
A process that runs only while it is measured.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence


class Pausable:
    """A command that is stopped (SIGSTOP) except in `running`; a context manager."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Pausable:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let it continue; one that has ended begins again, and has printed something."""
        if self._process is None or self._process.poll() is not None:
            self._process = _started(self._command)
        else:
            self._process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGSTOP)


def _started(command: Sequence[str]) -> subprocess.Popen[bytes]:
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output)  # noqa: S603 - our own command line
        while not os.fstat(output.fileno()).st_size:
            if process.poll() is not None:
                raise RuntimeError(f"{command} ended with status {process.returncode}")
            time.sleep(0.01)
    return process
