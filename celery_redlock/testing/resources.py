"""The processes, threads and files of a started cluster."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Self

from celery_redlock._greenlets.threads import register_at_fork
from celery_redlock.errors import ConfigurationError
from celery_redlock.testing.proxy import TcpProxy
from celery_redlock.testing.server import LocalClusterError, PortTakenError, Server

#: How often a start is tried while other processes take the ports.
_START_ATTEMPTS = 5

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


class ClusterResources:
    """
    The resources of a cluster, from start to close.

    They end when `finalizer` is called, when the owner is garbage, and when the interpreter exits.
    A forked child ends nothing of its parent's.
    """

    def __init__(self, owner: object) -> None:
        self.pid = os.getpid()
        self.directory = Path(tempfile.mkdtemp(prefix="celery-redlock-"))
        self.guardian = ChildGuardian(self.directory)
        self.servers: list[Server] = []
        self.proxy: TcpProxy | None = None
        self.finalizer = weakref.finalize(owner, self._end)
        _open_resources.add(self)

    def _end(self) -> None:
        if self.pid != os.getpid():
            return
        _open_resources.discard(self)
        if self.proxy is not None:
            self.proxy.close()
        self.guardian.kill()
        for server in self.servers:
            server.dispose()
        shutil.rmtree(self.directory, ignore_errors=True)

    def reset_after_fork(self) -> None:
        """Close the copies that would keep the parent's servers and connections open."""
        self.guardian.detach()
        if self.proxy is not None:
            self.proxy.reset_after_fork()


class ResourceOwner(ABC):
    """
    Starts servers and ends them, in a `with` block or by calls.

    Args:
        start_timeout: seconds that a server may take until it answers.
    """

    _resources: ClusterResources | None = None

    def __init__(self, start_timeout: float) -> None:
        self._start_timeout = start_timeout

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """
        Start everything and wait until it is ready; do nothing if it is running.

        Raises:
            LocalClusterError: a server did not start; the end of its log is in the message.
        """
        if self._resources is not None:
            return
        for attempt in range(_START_ATTEMPTS):
            self._resources = ClusterResources(self)
            try:
                self._start(self._resources)
            except BaseException as error:
                self.close()
                # Another attempt has other ports; the configurations of some servers name them all.
                if not isinstance(error, PortTakenError) or attempt == _START_ATTEMPTS - 1:
                    raise
            else:
                return

    @abstractmethod
    def _start(self, resources: ClusterResources) -> None:
        """Start everything and wait until it is ready."""

    def _launch(self, servers: Sequence[Server]) -> None:
        for server in servers:
            server.launch()
        for server in servers:
            server.wait_ready(self._start_timeout)

    def close(self) -> None:
        """End the servers and remove their files. May be called again; `start` works again."""
        if self._resources is not None:
            self._resources.finalizer()
            self._resources = None

    def _get_resources(self) -> ClusterResources:
        if self._resources is None:
            raise LocalClusterError(f"{self!r}: use it in a with block")
        return self._resources

    def _get_own_resources(self) -> ClusterResources:
        resources = self._get_resources()
        if resources.pid != os.getpid():
            raise LocalClusterError(
                f"{self!r} belongs to process {resources.pid}: control it from there"
            )
        return resources

    def _proxy(self) -> TcpProxy:
        proxy = self._get_own_resources().proxy
        if proxy is None:
            raise ConfigurationError(f"there is no proxy: start {type(self).__name__}(proxy=True)")
        return proxy


_open_resources: set[ClusterResources] = set()


def _after_fork_in_child() -> None:
    for resources in _open_resources:
        resources.reset_after_fork()
    _open_resources.clear()


register_at_fork(after_in_child=_after_fork_in_child)
