"""Child processes that end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import IO

# Every POSIX shell can run these. They ignore the signals that a terminal or a supervisor sends to
# all processes, because they must outlive their owner.
_WAIT = "trap '' HUP INT TERM; read -r _; "
_KILL = _WAIT + "kill -KILL 0"
# A child that was killed while it made a file may still make it.
_REMOVE = _WAIT + 'for _ in 1 2 3 4 5; do rm -rf -- "$1" && break; sleep 1; done'


class ChildGuardian:
    """
    A process group that dies with its owner, whatever ends the owner.

    A shell at the head of the group reads from a pipe; the owner holds the other end. When the
    owner closes it, exits or is killed with SIGKILL, the shell sees the end of the pipe and kills
    the group. A second shell, outside of the group, reads from the first, and removes the directory
    when that has ended, because then all children are killed. `PR_SET_PDEATHSIG` needs no shell,
    but exists on Linux only, and fires when the *thread* that started the child ends, not the
    process.
    """

    def __init__(self, directory: Path) -> None:
        self._remover = _start_shell(_REMOVE, str(directory), stdout=subprocess.DEVNULL)
        self._shell = _start_shell(_KILL, stdout=self._remover.stdin)
        assert self._remover.stdin is not None
        self._remover.stdin.close()

    @property
    def group(self) -> int:
        """The process group that children join to end with their owner."""
        return self._shell.pid

    def kill(self) -> None:
        """Kill the whole group now; stopped processes too. The directory stays."""
        if self._shell.returncode is None:
            self._remover.kill()
            self._remover.wait()
            os.killpg(self._shell.pid, signal.SIGKILL)
            self._shell.wait()
        self.detach()

    def detach(self) -> None:
        """Close this process's end of the pipe; a forked child does so with its copy."""
        if self._shell.stdin is not None:
            self._shell.stdin.close()


def _start_shell(
    script: str, *arguments: str, stdout: IO[bytes] | int | None
) -> subprocess.Popen[bytes]:
    """Start a shell that reads from a pipe, at the head of a process group of its own."""
    return subprocess.Popen(
        ["/bin/sh", "-c", script, "celery-redlock-guardian", *arguments],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        cwd="/",
        bufsize=0,
        process_group=0,
    )
