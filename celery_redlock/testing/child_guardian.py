"""Child processes that end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

__all__ = ["ChildGuardian"]

# Every POSIX shell can run this. It kills itself with the group, so it removes the directory first.
# It ignores the signals that a terminal or a supervisor sends to all processes, because it must
# outlive its owner.
_GUARDIAN = """
trap '' HUP INT TERM
read -r _
rm -rf -- "$1"
kill -KILL 0
"""


class ChildGuardian:
    """
    A process group that dies with its owner, whatever ends the owner.

    A shell at the head of the group reads from a pipe; the owner holds the other end. When the
    owner closes it, exits or is killed with SIGKILL, the shell sees the end of the pipe, removes
    the directory and kills the group. `PR_SET_PDEATHSIG` needs no shell, but exists on Linux only,
    and fires when the *thread* that started the child ends, not the process.
    """

    def __init__(self, directory: Path) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _GUARDIAN, "celery-redlock-guardian", str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            bufsize=0,
            process_group=0,
        )

    @property
    def group(self) -> int:
        """The process group that children join to end with their owner."""
        return self._shell.pid

    def kill(self) -> None:
        """Kill the whole group now; stopped processes too."""
        if self._shell.returncode is None:
            os.killpg(self._shell.pid, signal.SIGKILL)
            self._shell.wait()
        self.detach()

    def detach(self) -> None:
        """Close this process's end of the pipe; a forked child does so with its copy."""
        if self._shell.stdin is not None:
            self._shell.stdin.close()
