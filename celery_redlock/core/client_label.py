"""
The default label of owner values: the process that holds the lock.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
from dataclasses import dataclass
from urllib.parse import quote, unquote

from celery_redlock.protocol.keys import owner_timestamp_us

HOST = socket.gethostname()

#: Maximum characters of a host: each node stores the owner value of each key.
LONGEST_HOST = 256

_CLIENT = re.compile(r"\S+ \S+ client (\S+) (\d{1,10})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientProcess:
    """
    The process behind an owner value with the label of `client_label`.

    Attributes:
        host: its host's name.
        pid: its id there.
        since: when the process began the attempt, in microseconds since the epoch.
    """

    host: str
    pid: int
    since: int


def host_word(host: str) -> str:
    """Return a host's name as one word of a label; a very long name is cut."""
    return quote(host.encode(errors="replace"), safe=":@")[:LONGEST_HOST]


def client_label() -> str:
    """Return the label of this process."""
    return f"client {host_word(HOST)} {os.getpid()}"


def person_label() -> str:
    """Return the label of what a person, or a program under a user's name, does: user@host."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container may have no name for its user
        user = str(os.getuid())
    return host_word(f"{user}@{HOST}")


def process_of(owner: str) -> ClientProcess | None:
    """Return the process behind an owner value; None if it has another label."""
    found, since = _CLIENT.fullmatch(owner), owner_timestamp_us(owner)
    if found is None or since is None:
        return None
    return ClientProcess(host=unquote(found[1]), pid=int(found[2]), since=since)
