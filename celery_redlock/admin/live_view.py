"""
A live view of the locks and the health of nodes, read in one look after the other.
"""

from __future__ import annotations

import contextlib
import fnmatch
import heapq
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from celery_redlock.admin import diagnosis
from celery_redlock.admin.lock_list import (
    LockEntry,
    as_data,
    list_locks,
    show_lock,
    waiters_as_data,
)
from celery_redlock.admin.lock_release import release_lock
from celery_redlock.admin.node_report import clock_correction, report_addresses
from celery_redlock.core import Client, Redlock, client_of
from celery_redlock.errors import QuorumUnavailable
from celery_redlock.protocol.keys import owner_label
from celery_redlock.protocol.texts import shortened
from celery_redlock.protocol.votes import KeyState
from celery_redlock.tasks.inspection import FOREIGN
from celery_redlock.tasks.rules.facts import Role
from celery_redlock.transport import clock

#: Rows that are shown for one filter, the most urgent ones; the others are only counted.
MOST_ROWS = 300

#: Seconds for which a look may read locks.
BUDGET = 1.5

#: Seconds between two reports about the nodes. They cost more than a short list of locks.
REPORT_EVERY = 10.0

#: Seconds that a node has for each answer.
TIMEOUT = 1.0

#: The change of a lock that its holder has neither released nor extended in time.
EXPIRED = "expired"

#: States of a key whose holder still needs it.
_NEEDED = (Role.RUNNING, FOREIGN)

#: Changes that are kept for each filter, and for the nodes.
MOST_CHANGES = 50

JsonObject = dict[str, Any]


class _OutOfTimeError(Exception):
    """Ends a list; some keys were not looked at."""


@dataclass(slots=True, kw_only=True)
class _Watched:
    """
    One filter: a glob on keys, or a text in the key, task, id, host or state.

    Attributes:
        text: as it was typed.
        rows: the most urgent entries that match, by node key, the most urgent one first.
        found: how many match.
        before: the rows of the previous look; None if that look was not complete.
        begun_at: when this look began.
        before_at: when the previous one did; a lock may have been read as early as that.
        expired: how many locks have expired since then, as far as both looks show it.
        changes: how rows differ from one look to the next.
        urgent: a heap of the most urgent entries so far, the least urgent one first.
    """

    text: str
    rows: dict[str, LockEntry] = field(default_factory=dict)
    found: int = 0
    before: dict[str, LockEntry] | None = None
    begun_at: float = 0.0
    before_at: float = 0.0
    expired: int = 0
    changes: deque[JsonObject] = field(default_factory=lambda: deque(maxlen=MOST_CHANGES))
    urgent: list[tuple[int, float, int, LockEntry]] = field(default_factory=list)

    @property
    def is_glob(self) -> bool:
        """Whether it is a glob on keys."""
        return any(wildcard in self.text for wildcard in "*?[")

    @property
    def begins(self) -> str:
        """Literal prefix of every matching key."""
        return re.split(r"[*?\[]", self.text)[0] if self.is_glob else ""

    def add(self, entry: LockEntry) -> None:
        """Count an entry if it matches, and keep it if it is among the most urgent ones."""
        if not self._matches(entry):
            return
        self.found += 1
        since = 0.0 if entry.since is None else entry.since.timestamp()
        # The most waiters first, then the longest held; the count decides between equals.
        item = (entry.waiting, -since, -self.found, entry)
        if len(self.urgent) < MOST_ROWS:
            heapq.heappush(self.urgent, item)
        else:
            heapq.heappushpop(self.urgent, item)

    def begin(self) -> None:
        """Forget what was found."""
        self.rows, self.urgent, self.found = {}, [], 0
        self.begun_at = clock.now()

    def end(self, at: str, *, is_complete: bool) -> None:
        """Note how the rows differ from the previous look's, if all rows of both are known."""
        self.rows = {item[-1].node_key: item[-1] for item in sorted(self.urgent, reverse=True)}
        known = self.rows if is_complete and self.found <= MOST_ROWS else None
        now, self.expired = clock.now(), 0
        if known is not None and self.before is not None:
            found = list(_differences(self.before, known, at, now - self.before_at))
            self.changes.extend(found)
            self.expired = sum(change["what"] == EXPIRED for change in found)
        self.before, self.before_at = known, self.begun_at

    def _matches(self, entry: LockEntry) -> bool:
        if self.is_glob:
            return fnmatch.fnmatchcase(entry.key, self.text)
        wanted = self.text.casefold()
        texts = (entry.key, entry.task, entry.task_id, entry.host, entry.state)
        return any(wanted in text.casefold() for text in texts if text)


class LiveView:
    """
    The locks and the health of a set of nodes, as the page and `celery-redlock watch` show them.

    One thread at a time may call `look`; others may call the other methods meanwhile.

    Args:
        redlock: the client of the nodes. No result contains a password of it.
        names: the names of tasks, see `celery_redlock.admin.lock_list.task_names`.
    """

    def __init__(self, redlock: Redlock | Client, names: Mapping[str, str]) -> None:
        self._client = client_of(redlock)
        self._names = names
        self._watched: dict[str, _Watched] = {}
        self._changes: deque[JsonObject] = deque(maxlen=MOST_CHANGES)
        self._report: JsonObject = {"nodes": [], "findings": []}
        self._reported_at = float("-inf")
        self._failing: dict[str, str] | None = None

    def look(self, filters: Collection[str]) -> dict[str, JsonObject]:
        """
        Return by filter what the nodes show now; one pass over the keys serves all filters.

        A look takes `BUDGET` for locks, and up to about `TIMEOUT` for each missing answer. It keeps
        `MOST_ROWS` of each filter in memory, however many locks there are.
        """
        at, began = _now(), clock.now()
        watched = [self._watched.get(text) or _Watched(text=text) for text in filters]
        self._watched = {one.text: one for one in watched}
        problem, part = None, 0.0
        try:
            part = self._read(watched)
        except QuorumUnavailable as exc:
            problem = str(exc)
        for one in watched:
            one.end(at, is_complete=problem is None and part >= 1.0)
        self._examine(at, at_once=problem is not None)
        shared = {"at": at, "problem": problem, **self._report}
        return {
            one.text: {
                **shared,
                "locks": None if problem else _locks(one, part),
                "changes": self._latest_changes(one),
                "expired": one.expired,
                "took": clock.now() - began,
            }
            for one in watched
        }

    def show(self, key: str) -> list[JsonObject]:
        """Return what each node has of a key, and its waiters; errors as for `show_lock`."""
        found = show_lock(self._client, key, names=self._names, timeout=TIMEOUT)
        return [_in_detail(entry) for entry in found]

    def release(self, key: str, row_id: str, owner: str, *, revoke: bool = False) -> int:
        """
        Release one row of a key; return 1 if its owner still had it, else 0.

        Args:
            key: the lock key.
            row_id: the `id` of the row.
            owner: the `owner` of the row.
            revoke: also keep its message from running, if it is queued.

        Errors as for `release_lock`.
        """
        released = release_lock(
            self._client,
            key,
            only={(row_id, owner)},
            rates=True,
            revoke=revoke,
            names=self._names,
            timeout=TIMEOUT,
        )
        at = _now()
        self._changes.extend(_change(at, "released from this page", entry) for entry in released)
        return len(released)

    def _read(self, watched: list[_Watched]) -> float:
        """Read locks until the time is up, and return the fraction of keys that was looked at."""
        until, part = clock.now() + BUDGET, 0.0
        for one in watched:
            one.begin()

        def progress(done: int, total: int) -> None:
            nonlocal part
            part = done / total if total else 1.0
            if part < 1.0 and clock.now() > until:
                raise _OutOfTimeError

        with contextlib.suppress(_OutOfTimeError):
            for entry in list_locks(
                self._client,
                pattern=_common([one.begins for one in watched]) + "*",
                names=self._names,
                timeout=TIMEOUT,
                progress=progress,
            ):
                for one in watched:
                    one.add(entry)
        return part

    def _examine(self, at: str, *, at_once: bool) -> None:
        """Make a new report about the nodes, if the last one is too old or nodes fail."""
        if not at_once and clock.now() < self._reported_at + REPORT_EVERY and not self._failing:
            return
        settings = self._client.settings
        reports = report_addresses(
            self._client.addresses, timeout=TIMEOUT, key_prefix=settings.key_prefix
        )
        findings = diagnosis.diagnose(reports, settings, clock_correction())
        self._report = diagnosis.as_data(reports, findings)
        self._reported_at = clock.now()
        failing = {one.url: one.failure.text for one in reports if one.failure is not None}
        if self._failing is not None:
            for node in sorted(failing.keys() - self._failing.keys()):
                self._changes.append(
                    {"at": at, "what": "does not answer", "node": node, "detail": failing[node]}
                )
            for node in sorted(self._failing.keys() - failing.keys()):
                self._changes.append({"at": at, "what": "answers again", "node": node})
        self._failing = failing

    def _latest_changes(self, one: _Watched) -> list[JsonObject]:
        """Return changes of rows and nodes, the latest first."""
        changes = [*one.changes, *tuple(self._changes)]
        return sorted(changes, key=lambda change: str(change["at"]), reverse=True)[:MOST_CHANGES]


def _common(texts: Sequence[str]) -> str:
    """Return the common prefix."""
    first, last = min(texts, default=""), max(texts, default="")
    differs = (at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(differs, len(first))]


def _differences(
    before: Mapping[str, LockEntry], after: Mapping[str, LockEntry], at: str, elapsed: float
) -> Iterator[JsonObject]:
    """Yield the changes; a needed lock has expired if the time that it had left is over."""
    for node_key in dict.fromkeys((*after, *before)):
        earlier, later = before.get(node_key), after.get(node_key)
        if earlier and later and earlier.owner == later.owner:
            continue
        if earlier and later and earlier.task_id and earlier.task_id == later.task_id:
            yield _change(at, f"now {later.state}", later)
            continue
        is_lost = earlier and earlier.state in _NEEDED and 0 <= earlier.expires_in <= elapsed
        if earlier and (is_lost or not later):
            yield _change(at, EXPIRED if is_lost else "ended", earlier)
        if later:
            passed_on = earlier and not is_lost
            yield _change(at, "has another holder" if passed_on else "acquired", later)


def _change(at: str, what: str, entry: LockEntry) -> JsonObject:
    return {"at": at, "what": what, **row_of(entry)}


def _locks(one: _Watched, part: float) -> JsonObject:
    """Return the rows of a filter, those of one key together."""
    groups: dict[str, list[LockEntry]] = {}
    for entry in one.rows.values():
        groups.setdefault(entry.key, []).append(entry)
    return {
        "found": one.found,
        "shown": len(one.rows),
        "part": part,
        "keys": [_group(key, groups[key]) for key in sorted(groups)],
    }


def _group(key: str, entries: Iterable[LockEntry]) -> JsonObject:
    rows = sorted(entries, key=lambda entry: (entry.slot is not None, entry.slot or 0))
    has_slots = any(entry.slot is not None for entry in rows)
    return {
        "key": key,
        "kind": ("rate" if any(entry.is_rate for entry in rows) else "limit")
        if has_slots
        else "lock",
        "waiting": max(entry.waiting for entry in rows),
        "waiting_for": max(_seconds_since(entry.waiting_since) or 0.0 for entry in rows),
        "rows": [row_of(entry) for entry in rows],
    }


def row_of(entry: LockEntry) -> JsonObject:
    """Return an entry's row: its data for JSON, and further data for people."""
    return {
        **as_data(entry),
        "id": entry.node_key,
        "owner": entry.owner,
        "holder": entry.task_id or shortened(owner_label(entry.owner)),
        "is_rate": entry.is_rate,
        "held_for": _seconds_since(entry.since),
        "waiting_for": _seconds_since(entry.waiting_since),
        "nodes": len(entry.nodes),
    }


def _in_detail(entry: LockEntry) -> JsonObject:
    by_node = [
        {"node": name, "problem": state}
        if isinstance(state, str)
        else {
            "node": name,
            "expires_in": state.expires_in,
            "counter": state.counter,
            "has": _has(entry, state),
        }
        for name, state in entry.nodes.items()
    ]
    return {**row_of(entry), "by_node": by_node, "waiters": waiters_as_data(entry)}


def _has(entry: LockEntry, state: KeyState) -> str:
    if state.owner is None:
        return "nothing"
    return "this owner" if state.owner == entry.owner else shortened(owner_label(state.owner))


def _seconds_since(moment: datetime | None) -> float | None:
    return None if moment is None else max((datetime.now(UTC) - moment).total_seconds(), 0.0)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
