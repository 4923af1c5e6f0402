"""
`celery-redlock list`, `show` and `release`: what the nodes hold, and how to free it.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

import click

from celery_redlock.admin.lock_list import LockEntry, as_data, list_locks, show_lock, task_names
from celery_redlock.admin.lock_release import release_lock, release_task
from celery_redlock.cli.output import Columns, print_json, print_table
from celery_redlock.cli.target import Target
from celery_redlock.core import Redlock
from celery_redlock.protocol import KeyState
from celery_redlock.protocol.keys import owner_label
from celery_redlock.protocol.texts import readable, shortened

__all__ = ["release_key", "release_of_task", "show_key", "show_locks"]
__all__ += ["COLUMNS", "cells_of", "client_of", "task_names_of"]

#: Of one lock; `cells_of` returns the cells.
COLUMNS = Columns(
    {"KEY": -32, "STATE": -8, "TASK": -20, "ID": -36, "HOST": -20, "AGE": 7, "LEFT": 7}
    | {"TOKEN": 16, "VOTES": 5, "WAITING": 7}
)

_NOTHING = "No lock is held."


def show_locks(target: Target, pattern: str, key_prefix: str | None, *, as_json: bool) -> int:
    """
    Print the locks that the nodes hold, each as soon as it is found; return 1 if there is none.

    Args:
        target: the nodes or the app.
        pattern: glob on the keys, as users write them.
        key_prefix: of the keys, if no app names it.
        as_json: print one JSON object.

    Raises:
        QuorumUnavailable: too few nodes answered.
    """
    with client_of(target, key_prefix) as redlock, _progress() as progress:
        names = task_names_of(target)
        entries = list_locks(redlock, pattern=pattern, names=names, progress=progress)
        return _print_stream("locks", entries, as_json=as_json)


def show_key(target: Target, key: str, key_prefix: str | None, *, as_json: bool) -> int:
    """Print what each node holds of one key, and who waits; otherwise as `show_locks`."""
    with client_of(target, key_prefix) as redlock:
        entries = show_lock(redlock, key, names=task_names_of(target))
    if as_json:
        print_json({"locks": [_in_detail(entry) for entry in entries]})
    elif not entries:
        click.echo(_NOTHING)
    for entry in () if as_json else entries:
        _print_detail(entry)
    return 0 if entries else 1


def release_key(
    target: Target, key: str, key_prefix: str | None, *, rates: bool, sure: bool, as_json: bool
) -> int:
    """
    Take a key away from all that hold it, after a question; return 1 if nobody held it.

    Args:
        target: the nodes or the app.
        key: the lock key.
        key_prefix: of the key, if no app names it.
        rates: also what a rate has counted.
        sure: do not ask.
        as_json: print one JSON object.

    Raises:
        QuorumUnavailable: too few nodes answered; nothing was released.
        click.Abort: the answer was no.
    """
    with client_of(target, key_prefix) as redlock:
        names = task_names_of(target)
        if not sure:
            found = show_lock(redlock, key, names=names)
            _ask([entry for entry in found if rates or not entry.is_rate])
        released = release_lock(redlock, key, rates=rates, names=names)
        return _print_stream("released", released, as_json=as_json)


def release_of_task(
    target: Target,
    task: str,
    key_prefix: str | None,
    *,
    state: str | None,
    sure: bool,
    as_json: bool,
) -> int:
    """Take the locks of a task's calls away that are in one state; otherwise as `release_key`."""
    with client_of(target, key_prefix) as redlock:
        if not sure:
            _ask(list(release_task(redlock, task, state=state, dry_run=True)))
        with _progress() as progress:
            released = release_task(redlock, task, state=state, progress=progress)
            return _print_stream("released", released, as_json=as_json)


def _ask(found: list[LockEntry]) -> None:
    """Show what would be released, and return only if that is wanted."""
    if not found:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"locks that would be released: {len(found)}. Give --yes to release them."
        )
    _print_stream("", iter(found), as_json=False)
    click.confirm("Their holders lose these locks. Release them?", abort=True)


@contextlib.contextmanager
def client_of(target: Target, key_prefix: str | None) -> Iterator[Redlock]:
    """Yield a client of the nodes; one that is made for it is closed at the end."""
    if target.urls is None:
        from celery_redlock.tasks.config.client import redlock_for

        yield redlock_for(target.app())
        return
    options = {} if key_prefix is None else {"key_prefix": key_prefix}
    with Redlock(target.nodes(), **options) as redlock:  # type: ignore[arg-type]
        yield redlock


def task_names_of(target: Target) -> dict[str, str]:
    """Return the names of the app's tasks by their digests; none without an app."""
    return task_names(target.app().tasks) if target.urls is None else {}


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """Show on a terminal how far a long list is."""
    if not sys.stderr.isatty() or sys.stdout.isatty():
        yield None
        return
    with click.progressbar(length=1, label="keys", file=sys.stderr) as bar:

        def show(done: int, total: int) -> None:
            bar.length = max(total, 1)
            bar.update(done - bar.pos)

        yield show


def _print_stream(name: str, entries: Iterable[LockEntry], *, as_json: bool) -> int:
    """Print entries one by one, and return 1 if there is none."""
    count = 0
    if as_json:
        print(f'{{"{name}": [', end="")
    for count, entry in enumerate(entries, 1):
        if as_json:
            print(("," if count > 1 else "") + "\n  " + json.dumps(as_data(entry)), end="")
        else:
            COLUMNS.print_row(cells_of(entry), heading=count == 1)
    if as_json:
        print("\n]}")
    elif not count:
        click.echo(_NOTHING)
    return 0 if count else 1


def cells_of(entry: LockEntry) -> list[str]:
    """Return what a row shows of a lock."""
    key = entry.key if entry.slot is None else f"{entry.key}#{entry.slot}"
    age = None if entry.since is None else (datetime.now(UTC) - entry.since).total_seconds()
    host = "-" if entry.host is None else f"{entry.host}[{entry.pid}]"
    return [
        key,
        entry.state,
        entry.task or "-",
        entry.task_id or shortened(owner_label(entry.owner)),
        host,
        "-" if age is None else _duration(age),
        "never" if entry.expires_in < 0 else _duration(entry.expires_in),
        "-" if entry.token is None else str(entry.token),
        f"{entry.votes}/{len(entry.nodes)}",
        str(entry.waiting),
    ]


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{readable(seconds)}s"


def _in_detail(entry: LockEntry) -> dict[str, object]:
    nodes = {
        name: {"owner": state.owner, "expires_in": state.expires_in, "counter": state.counter}
        if isinstance(state, KeyState)
        else {"problem": state}
        for name, state in entry.nodes.items()
    }
    waiters = [
        {"name": waiter.name, "since": waiter.since and waiter.since.isoformat()}
        for waiter in entry.waiters
    ]
    return {**as_data(entry), "nodes": nodes, "waiters": waiters}


def _print_detail(entry: LockEntry) -> None:
    for heading, cell in zip(COLUMNS.headings, cells_of(entry), strict=True):
        click.echo(f"{heading.lower():<9} {cell}")
    rows = [
        [name, "-", "-", state]
        if isinstance(state, str)
        else [name, f"{state.expires_in:.1f} s", str(state.counter), owner_label(state.owner or "")]
        for name, state in entry.nodes.items()
    ]
    print_table(["NODE", "LEFT", "COUNTER", "HELD BY"], rows, numbers=["LEFT", "COUNTER"])
    for waiter in entry.waiters:
        since = "woken" if waiter.since is None else f"since {waiter.since:%Y-%m-%d %H:%M:%S} UTC"
        click.echo(f"waits     {waiter.name}, {since}")
    click.echo()
