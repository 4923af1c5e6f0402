"""
`celery-redlock pause` and `resume`: keys that nobody gets for a while.
"""

from __future__ import annotations

import click

from celery_redlock.admin.node_readers import TIMEOUT
from celery_redlock.cli.output import print_json, printable
from celery_redlock.cli.target import Target
from celery_redlock.core.pausing import pause_lock, resume_lock


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
