"""
Labels of owner values, which name the task that holds a key.

An owner value begins with entropy and the time of the attempt, which the core adds. The label
follows.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, unquote

from celery_redlock.core.client_label import HOST, host_word
from celery_redlock.tasks.message.header_values import END_OF_TIME
from celery_redlock.tasks.rules.facts import Role

TASK_DIGITS = 8

#: Limit of an id in stored characters: each node stores the owner value of each key.
LONGEST_ID = 512
DIGEST_DIGITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOwner:
    """
    The task behind an owner value.

    Attributes:
        role: state of the task.
        task_id: id of the task, or its digest if it is very long (`label_id`). Compare by `is_of`.
        host: worker node name or publisher host name of the process that set the key.
        pid: id of that process.
        since: when it began the attempt, in microseconds since the epoch.
        due_us: due time of the task's tick, in microseconds since the epoch; None without a tick.
        tick_id: id of the tick; the same for all messages of one tick.
        nonce: the ended message's nonce, in a dedupe marker that other messages may ignore.
        marker: digest of the message's dedupe key (`node_keys.dedupe_key_of`), by which a duplicate
            can look the message up.
        task: digest of the task's name; several tasks may share a key.
        sent_us: when the call was sent, in microseconds since the epoch, where the newest call of
            the task wins.
        burst_us: when the first call of its burst was made, in microseconds since the epoch; None
            if it is no debounced call.
        replaces: the marker of the call that its publisher replaces, or has replaced.
        ignored: whether its result is not stored.
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
    sent_us: int | None = None
    burst_us: int | None = None
    replaces: str | None = None
    ignored: bool = False

    @property
    def age_us(self) -> int:
        """By when its call is compared with others: due, sent, or else its attempt."""
        known = (self.due_us, self.sent_us, self.since)
        return next(moment for moment in known if moment is not None)

    def runs(self, name: str) -> bool:
        """Return whether this is a call of the task with that name."""
        return self.task == task_digest(name)

    def is_of(self, task_id: str | None) -> bool:
        """Return whether this is the task with that id."""
        return task_id is not None and self.task_id == label_id(task_id)


def label_id(task_id: str) -> str:
    """
    Return the id of a task in owner values: its own, or a digest if it is too long or not Unicode.

    Limit: the result of a task cannot be looked up by its digest.
    """
    encoded = task_id.encode(errors="surrogatepass")
    if len(_quoted(encoded)) <= LONGEST_ID and encoded.decode(errors="replace") == task_id:
        return task_id
    return f"sha256:{hashlib.sha256(encoded).hexdigest()[:DIGEST_DIGITS]}"


@lru_cache(maxsize=1024)
def task_digest(name: str) -> str:
    """Return the digest of a task's name that owner values contain."""
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
    sent_us: int | None = None,
    burst_us: int | None = None,
    replaces: str | None = None,
    ignored: bool = False,
) -> str:
    """
    Return the label of an owner value that this process makes for a task.

    Tick fields are positional: a field is written only if all earlier ones are.

    Args:
        role: state of the task.
        task_id: its id.
        host: see `TaskOwner`; this host if not given.
        due_us: first tick field, see `TaskOwner`.
        tick_id: second tick field.
        nonce: third tick field.
        marker: digest of the message's dedupe key.
        task: the task's name.
        sent_us: see `TaskOwner`.
        burst_us: see `TaskOwner`.
        replaces: see `TaskOwner`.
        ignored: see `TaskOwner`.
    """
    label = f"{role} {_quoted(label_id(task_id))} {host_word(host or HOST)} {os.getpid()}"
    for tick_field in (due_us, tick_id, nonce and quote(nonce, safe="")):
        if tick_field is None:
            break
        label = f"{label} {tick_field}"
    # No other word of a label has an equals sign.
    named = {
        "marker": marker,
        "sent": sent_us,
        "task": task and task_digest(task),
        "burst": burst_us,
        "replaces": replaces,
        "ignored": 1 if ignored else None,
    }
    words = (f"{name}={value}" for name, value in named.items() if value not in (None, ""))
    return " ".join((label, *words))


def parse_owner(value: str | None) -> TaskOwner | None:
    """Return the task behind an owner value, or None if the value is not that of a task."""
    try:
        _, since, role, task_id, host, pid, *rest = (value or "").split(" ")
        tick = [word for word in rest if "=" not in word]
        named = dict(word.split("=", 1) for word in rest if "=" in word)
        tick_fields: list[str | None] = [*tick, *[None] * (3 - len(tick))]
        due_us, tick_id, nonce = tick_fields
        burst = named.get("burst")
        if not all(0 <= int(us) <= END_OF_TIME * 1_000_000 for us in (since, burst or "0")):
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
            marker=named.get("marker"),
            task=named.get("task"),
            sent_us=int(named["sent"]) if "sent" in named else None,
            burst_us=None if burst is None else int(burst),
            replaces=named.get("replaces"),
            ignored="ignored" in named,
        )
    except ValueError:
        return None
