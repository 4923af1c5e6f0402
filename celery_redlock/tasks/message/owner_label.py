"""
What an owner value tells about the task behind it.

The core begins every owner value with entropy and the time of the attempt; the label that follows
is made and read here.
"""

from __future__ import annotations

import hashlib
import os
import socket
from dataclasses import dataclass
from urllib.parse import quote, unquote

from celery_redlock.tasks.message.header_values import END_OF_TIME
from celery_redlock.tasks.rules.facts import Role

__all__ = ["LONGEST_ID", "Role", "TaskOwner", "label_for", "label_id", "parse_owner"]

HOST = socket.gethostname()

#: Before the name of a message's mark, and before what tells tasks apart. No other word of a label
#: has an equals sign.
MARKER = "marker="
TASK = "task="
TASK_DIGITS = 8

#: Each node stores an owner value for each key, so its parts are no longer than this, in characters
#: as they are stored.
LONGEST_ID = 512
LONGEST_HOST = 256
DIGEST_DIGITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOwner:
    """
    The task behind an owner value.

    Attributes:
        role: what it is doing.
        task_id: its id; of a very long one a digest (`label_id`). Compare it by `is_of`.
        host: where the key was set: a worker's node name, or a publisher's host name.
        pid: the process that set it.
        since: when, in microseconds since the epoch.
        due_us: where it runs for a tick of a schedule, when that was due, in microseconds since
            the epoch.
        tick_id: which tick of which entry that is; the same for all messages of one tick.
        nonce: of the message that ended, in a mark that is not over for all of them.
        marker: digest of its message's mark, see `node_keys.dedupe_key_of`; by it a duplicate can
            ask what has become of the message.
        task: what tells its task from others; a key may be shared by several tasks.
    """

    role: Role
    task_id: str
    host: str
    pid: int
    since: int
    due_us: int | None = None
    tick_id: str | None = None
    nonce: str | None = None
    marker: str | None = None
    task: str | None = None

    def runs(self, name: str) -> bool:
        """Return whether this is a call of the task with that name, as far as is known."""
        return self.task in (None, _digest(name))

    def is_of(self, task_id: str | None) -> bool:
        """Return whether this is the task with that id."""
        return task_id is not None and self.task_id == label_id(task_id)


def label_id(task_id: str) -> str:
    """
    Return by what an owner value names a task: its id, or a digest of one that is too long.

    The result of a task that is only known by its digest cannot be looked up. An id that is no
    Unicode text has a digest, too.
    """
    encoded = task_id.encode(errors="surrogatepass")
    if len(_quoted(encoded)) <= LONGEST_ID and encoded.decode(errors="replace") == task_id:
        return task_id
    return f"sha256:{hashlib.sha256(encoded).hexdigest()[:DIGEST_DIGITS]}"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:TASK_DIGITS]


def _quoted(text: str | bytes) -> str:
    return quote(text, safe=":@")


def label_for(
    role: Role,
    task_id: str,
    host: str | None = None,
    *,
    due_us: int | None = None,
    tick_id: str | None = None,
    nonce: str | None = None,
    marker: str | None = None,
    task: str | None = None,
) -> str:
    """
    Return the label of an owner value that this process makes for a task.

    Of what is told of a tick, each is told only together with those before it.

    Args:
        role: what the task is doing.
        task_id: its id.
        host: where it runs; this host if not given.
        due_us: see `TaskOwner`, as are `tick_id`, `nonce` and `marker`.
        tick_id: which tick.
        nonce: of the message.
        marker: digest of the message's mark.
        task: the task's name.
    """
    host = _quoted((host or HOST).encode(errors="replace"))[:LONGEST_HOST]
    label = f"{role} {_quoted(label_id(task_id))} {host} {os.getpid()}"
    for told in (due_us, tick_id, nonce and quote(nonce, safe="")):
        if told is None:
            break
        label = f"{label} {told}"
    label = f"{label} {MARKER}{marker}" if marker else label
    return f"{label} {TASK}{_digest(task)}" if task else label


def parse_owner(value: str | None) -> TaskOwner | None:
    """Return the task behind an owner value, or None where something else holds the key."""
    try:
        _, since, role, task_id, host, pid, *rest = (value or "").split(" ")
        tick = [word for word in rest if "=" not in word]
        named = dict(word.split("=", 1) for word in rest if "=" in word)
        told: list[str | None] = [*tick, *[None] * (3 - len(tick))]
        due_us, tick_id, nonce = told
        if not 0 <= int(since) <= END_OF_TIME * 1_000_000:
            return None
        return TaskOwner(
            role=Role(role),
            task_id=unquote(task_id),
            host=unquote(host),
            pid=int(pid),
            since=int(since),
            due_us=None if due_us is None else int(due_us),
            tick_id=tick_id,
            nonce=None if nonce is None else unquote(nonce),
            marker=named.get(MARKER.removesuffix("=")),
            task=named.get(TASK.removesuffix("=")),
        )
    except ValueError:
        return None
