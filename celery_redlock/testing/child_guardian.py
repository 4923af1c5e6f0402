"""Child processes that cannot outlive the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

__all__ = ["ChildGuardian"]

# Kept to what every POSIX shell has. The shell ends itself with the group, so the directory goes
# first. The signals are those a terminal or a supervisor sends to everybody at once: the guardian
# must still be there when its owner is gone.
_GUARDIAN = """
trap '' HUP INT TERM
read -r _
rm -rf -- "$1"
kill -KILL 0
"""


class ChildGuardian:
    """
    A process group that is killed when its owner ends, whatever ended the owner.

    A shell at the head of the group reads from a pipe whose other end the owner holds. When the
    owner closes it, exits or is killed with SIGKILL, the shell sees the end of the pipe, removes
    the directory and kills the group. `PR_SET_PDEATHSIG` would do it without a shell, but on Linux
    only, and it fires when the *thread* that started the child ends, not the process.
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
        """The process group that children join to be ended with their owner."""
        return self._shell.pid

    def kill(self) -> None:
        """Kill the whole group now; stopped processes too."""
        if self._shell.returncode is None:
            os.killpg(self._shell.pid, signal.SIGKILL)
            self._shell.wait()
        self.detach()

    def detach(self) -> None:
        """Close this process's end of the pipe: what a forked child does with its copy."""
        if self._shell.stdin is not None:
            self._shell.stdin.close()
