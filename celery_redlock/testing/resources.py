"""The processes, threads and files of a started cluster."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from celery_redlock._greenlets.forks import register_at_fork
from celery_redlock.errors import ConfigurationError
from celery_redlock.testing.child_guardian import ChildGuardian
from celery_redlock.testing.proxy import TcpProxy
from celery_redlock.testing.server import LocalClusterError, PortTakenError, Server

#: How often a start is tried while other processes take the ports.
_START_ATTEMPTS = 5


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
