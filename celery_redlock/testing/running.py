"""What a started cluster holds, and how all of it ends."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path

from celery_redlock.testing.lifeline import Lifeline
from celery_redlock.testing.proxy import TcpProxy
from celery_redlock.testing.server import Server

__all__ = ["Running"]


class Running:
    """
    The processes, threads and files of a cluster, from start to close.

    They end when `finalizer` is called, and by themselves when the owner is garbage or the
    interpreter exits; a forked child ends nothing of its parent's.
    """

    def __init__(self, owner: object) -> None:
        self.pid = os.getpid()
        self.directory = Path(tempfile.mkdtemp(prefix="celery-redlock-"))
        self.lifeline = Lifeline(self.directory)
        self.servers: list[Server] = []
        self.proxy: TcpProxy | None = None
        self.finalizer = weakref.finalize(owner, self._end)
        _all_running.add(self)

    def _end(self) -> None:
        if self.pid != os.getpid():
            return
        _all_running.discard(self)
        if self.proxy is not None:
            self.proxy.close()
        self.lifeline.cut()
        for server in self.servers:
            server.dispose()
        shutil.rmtree(self.directory, ignore_errors=True)

    def abandon_in_child(self) -> None:
        """Let go of what would keep the parent's servers and connections open."""
        self.lifeline.let_go()
        if self.proxy is not None:
            self.proxy.abandon_in_child()


_all_running: set[Running] = set()


def _after_fork_in_child() -> None:
    for running in _all_running:
        running.abandon_in_child()
    _all_running.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
