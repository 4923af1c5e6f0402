"""
Takes from Python what it does not have on Windows.

Celery and what it stands on decide by `sys.platform`, so they are imported first.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time

import celery.apps.beat
import celery.apps.worker
import celery.bin.celery  # noqa: F401

MISSING = {
    os: ("fork", "forkpty", "register_at_fork", "set_blocking", "killpg", "fchmod", "O_NOFOLLOW"),
    select: ("poll", "epoll", "PIPE_BUF"),
    signal: ("SIGURG", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD", "pthread_kill", "setitimer"),
    socket: ("AF_UNIX",),
    time: ("CLOCK_BOOTTIME", "clock_gettime"),
}
MODULES = ("fcntl", "grp", "pwd", "resource", "termios")


def loopback_pair() -> tuple[socket.socket, socket.socket]:
    """`socket.socketpair` as Python makes it without `AF_UNIX`."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


def take_away() -> None:
    """Leave this process with what Windows has."""
    for module, names in MISSING.items():
        for name in names:
            vars(module).pop(name, None)
    socket.socketpair = loopback_pair
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]  # an import then fails
