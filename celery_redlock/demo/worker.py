"""
The demo's Celery worker: a real one, in processes of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from celery_redlock.demo.scene import PROCESSES, Scene
from celery_redlock.errors import RedlockError
from celery_redlock.testing.child_guardian import ChildGuardian

__all__ = ["Worker"]

_PATIENCE = 5.0
_LOG_TAIL = 15


class Worker:
    """
    A prefork worker that ends with this process, however this process ends.

    It is not in the terminal's process group, so that Ctrl-C reaches the demo alone.
    """

    def __init__(self, scene: Scene) -> None:
        self._guardian = ChildGuardian(Path(scene.directory))
        self._log = Path(scene.directory, "worker.log")
        command = [
            *(sys.executable, "-m", "celery", "-A", "celery_redlock.demo.app", "worker"),
            *("--pool=prefork", f"--concurrency={PROCESSES}", "--loglevel=INFO"),
            *("--hostname=demo@localhost", "--without-gossip", "--without-mingle"),
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603  # our own interpreter and module
                command,
                env=scene.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=self._guardian.group,
            )

    def check(self) -> None:
        """Raise `RedlockError` if the worker has ended."""
        if self._process.poll() is not None:
            raise RedlockError(
                f"The worker ended with status {self._process.returncode}. The end of its log:\n"
                f"{self.log_tail}"
            )

    @property
    def log_tail(self) -> str:
        """The last lines that it has logged."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_TAIL:])

    def shut_down(self) -> None:
        """Let it end as a worker does that is told to."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_PATIENCE)

    def close(self) -> None:
        """End all its processes at once, stopped ones too."""
        self._guardian.kill()
        self._process.wait()


def is_stopped(pid: int) -> bool:
    """Tell whether a process has stopped after SIGSTOP, which takes effect a little later."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.exists():
        state = stat.read_text().rpartition(")")[2]
    else:
        asked = ["ps", "-o", "state=", "-p", str(pid)]
        state = subprocess.run(asked, capture_output=True, text=True, check=False).stdout  # noqa: S603
    return state.strip()[:1] in ("T", "t")


def send_signal(pid: int, number: signal.Signals) -> bool:
    """Signal one of the worker's processes; False if it is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
