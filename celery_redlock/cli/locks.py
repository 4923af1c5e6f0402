"""
`celery-redlock list`, `show`, `release`, `pause` and `resume`: locks that the nodes hold or refuse.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

import click

from celery_redlock.admin.live_view import row_of
from celery_redlock.admin.lock_list import (
    PAUSED,
    LockEntry,
    Progress,
    as_data,
    list_locks,
    show_lock,
    waiters_as_data,
)
from celery_redlock.admin.lock_release import release_lock, release_task
from celery_redlock.admin.node_readers import TIMEOUT
from celery_redlock.cli.lock_rows import COLUMNS, NOTHING, cells_of, print_locks
from celery_redlock.cli.output import print_json, print_table, printable
from celery_redlock.cli.target import Target
from celery_redlock.core.pausing import pause_lock, resume_lock
from celery_redlock.protocol.keys import owner_label
from celery_redlock.protocol.votes import Failed, KeyState
from celery_redlock.tasks.message.owner_label import label_id


def show_locks(target: Target, pattern: str, *, as_json: bool) -> int:
    """
    Print the locks that the nodes hold, each as soon as it is found; return 1 if there is none.

    Args:
        target: the nodes or the app.
        pattern: glob on the keys, as users write them.
        as_json: print one JSON object.

    Raises:
        QuorumUnavailable: too few nodes replied.
    """
    with target.client() as client:
        names = target.task_names()
        return print_locks(
            "locks",
            lambda progress: list_locks(client, pattern=pattern, names=names, progress=progress),
            as_json=as_json,
        )


def show_key(target: Target, key: str, *, as_json: bool) -> int:
    """Print what each node holds of one key, and its waiters; otherwise like `show_locks`."""
    with target.client() as client:
        entries = show_lock(client, key, names=target.task_names())
    if as_json:
        print_json({"locks": [_in_detail(entry) for entry in entries]})
    elif not entries:
        click.echo(NOTHING)
    for entry in () if as_json else entries:
        _print_detail(entry)
    return 0 if entries else 1


def release_key(
    target: Target,
    key: str,
    *,
    rates: bool,
    task_id: str | None,
    revoke: bool,
    sure: bool,
    as_json: bool,
) -> int:
    """
    Take a key away from all its holders; return 1 if it had none.

    Unless `sure`, it asks first, and then only the holders that the question showed lose the key.

    Args:
        target: the nodes or the app.
        key: the lock key.
        rates: also forget what a rate has counted.
        task_id: only from the task with this id.
        revoke: also keep queued messages from running.
        sure: do not ask.
        as_json: print one JSON object.

    Raises:
        QuorumUnavailable: too few nodes replied; see `release_lock`.
        click.Abort: the answer was no.
    """
    with target.client() as client:
        names = target.task_names()
        only = None
        if not sure:
            found = [
                entry
                for entry in show_lock(client, key, names=names)
                if (rates or not entry.is_rate)
                and not entry.is_pause
                and (task_id is None or entry.task_id == label_id(task_id))
            ]
            only = _agreed(found, revoke)
        released = release_lock(
            client, key, rates=rates, revoke=revoke, task_id=task_id, only=only, names=names
        )
        left = () if released else show_lock(client, key, names=names)
        if not rates and any(entry.is_rate for entry in left):
            click.echo("A rate has counted the key: --rates forgets that.", err=True)
        if any(entry.state == PAUSED for entry in left):
            text = f"The key is paused. To end the pause: celery-redlock resume {key!r}."
            click.echo(printable(text), err=True)
        return _print_released(lambda _: released, as_json=as_json)


def release_of_task(
    target: Target,
    task: str,
    *,
    state: str | None,
    task_id: str | None,
    revoke: bool,
    sure: bool,
    as_json: bool,
) -> int:
    """Release the locks of a task's calls in one state; otherwise like `release_key`."""
    with target.client() as client:
        names = target.task_names().values()
        if names and task not in names:
            click.echo(f"The app has no task {task!r}.", err=True)
        only = None
        if not sure:
            found = release_task(client, task, state=state, task_id=task_id, dry_run=True)
            only = _agreed(list(found), revoke)
        return _print_released(
            lambda progress: release_task(
                client,
                task,
                state=state,
                task_id=task_id,
                revoke=revoke,
                only=only,
                progress=progress,
            ),
            as_json=as_json,
        )


def pause_key(target: Target, key: str, *, seconds: float, as_json: bool) -> int:
    """
    Pause a key, and print on how many nodes it is paused.

    Args:
        target: the nodes or the app.
        key: the lock key.
        seconds: how long.
        as_json: print one JSON object.

    Raises:
        QuorumUnavailable: fewer nodes than a quorum have confirmed it.
    """
    with target.client() as own, own.patient(TIMEOUT) as client:
        silent, names = pause_lock(client, key, seconds), client.node_names
    if as_json:
        nodes = {name: silent.get(name) for name in names}
        print_json({"key": key, "seconds": seconds, "problems": nodes})
        return 0
    on = f"{len(names) - len(silent)} of {len(names)} nodes"
    click.echo(printable(f"Lock {key!r} is paused for {seconds:g} s on {on}."))
    for name, reason in silent.items():
        text = f"{name} has not confirmed it, and may grant the key; pause it again: {reason}"
        click.echo(printable(text), err=True)
    return 0


def resume_key(target: Target, key: str, *, as_json: bool) -> int:
    """End the pause of a key; return 1 if it was not paused. Otherwise like `pause_key`."""
    with target.client() as own, own.patient(TIMEOUT) as client:
        was_paused = resume_lock(client, key)
    if as_json:
        print_json({"key": key, "was_paused": was_paused})
    else:
        ended = "is not paused any more" if was_paused else "was not paused"
        click.echo(printable(f"Lock {key!r} {ended}."))
    return 0 if was_paused else 1


def _print_released(
    entries_of: Callable[[Progress | None], Iterable[LockEntry]], *, as_json: bool
) -> int:
    """Print what was released, as `print_locks`, and the nodes that may still have some of it."""
    silent: dict[str, str] = {}

    def noted(progress: Progress | None) -> Iterable[LockEntry]:
        for entry in entries_of(progress):
            votes = entry.votes_on_release.items()
            silent.update((name, vote.reason) for name, vote in votes if isinstance(vote, Failed))
            yield entry

    status = print_locks("released", noted, as_json=as_json, if_none="No lock was released.")
    for name, reason in silent.items():
        text = f"{name} has not replied to the release, and may keep it until it expires: {reason}"
        click.echo(printable(text), err=True)
    return status


def _agreed(found: list[LockEntry], revoke: bool) -> frozenset[tuple[str, str]]:
    """Show what would be released; return that if the user agrees, otherwise raise."""
    shown = frozenset((entry.node_key, entry.owner) for entry in found)
    if not found:
        return shown
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"locks that would be released: {len(found)}. Give --yes to release them."
        )
    print_locks("", lambda _: found, as_json=False)
    messages = ""
    if any(entry.state == "queued" for entry in found):
        messages = (
            "Queued messages among them will not run. "
            if revoke
            else "Messages that a broker still has will run; --revoke would prevent that. "
        )
    click.confirm(f"Their holders lose these locks. {messages}Release them?", abort=True)
    return shown


def _in_detail(entry: LockEntry) -> dict[str, object]:
    nodes = {
        name: {"owner": state.owner, "expires_in": state.expires_in, "counter": state.counter}
        if isinstance(state, KeyState)
        else {"problem": state}
        for name, state in entry.nodes.items()
    }
    return {**as_data(entry), "nodes": nodes, "waiters": waiters_as_data(entry)}


def _print_detail(entry: LockEntry) -> None:
    for column, cell in zip(COLUMNS, cells_of(row_of(entry)), strict=True):
        click.echo(f"{column.heading.lower():<9} {printable(cell)}")
    rows = [
        [name, "-", "-", state]
        if isinstance(state, str)
        else [name, f"{state.expires_in:.1f} s", str(state.counter), owner_label(state.owner or "")]
        for name, state in entry.nodes.items()
    ]
    print_table(["NODE", "LEFT", "COUNTER", "HELD BY"], rows, numbers=["LEFT", "COUNTER"])
    for waiter in entry.waiters:
        since = "woken" if waiter.since is None else f"since {waiter.since:%Y-%m-%d %H:%M:%S} UTC"
        priority = f", priority {waiter.priority}" if waiter.priority else ""
        click.echo(f"waits     {printable(waiter.name)}, {since}{priority}")
    click.echo()
