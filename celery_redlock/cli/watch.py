"""
`celery-redlock watch`: locks, waiters and nodes, live on a terminal or as JSON.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import sys
import time

import click

from celery_redlock.admin.live_view import LiveView
from celery_redlock.cli.target import Target
from celery_redlock.errors import ConfigurationError


def watch_locks(target: Target, text: str, *, every: float, as_json: bool) -> int:
    """
    Show locks and nodes until `q` is pressed or the process is interrupted, and return 0.

    Args:
        target: the nodes or the app.
        text: the filter: a glob on keys, or a part of a key, task, id, host or state.
        every: seconds between two polls of the nodes.
        as_json: print one line of JSON for each poll; this needs no terminal.

    Raises:
        ConfigurationError: a package is missing, or this system has no such terminals.
        click.UsageError: there is no terminal.
    """
    with target.client() as client, contextlib.suppress(KeyboardInterrupt):
        view = LiveView(client, target.task_names())
        looks = (view.look([text])[text] for _ in itertools.count())
        if not as_json:
            _check_terminal()
            from celery_redlock.cli.screen import show

            show(looks, every)
            return 0
        for look in looks:
            print(json.dumps(look), flush=True)
            time.sleep(every)
    return 0


def _check_terminal() -> None:
    if importlib.util.find_spec("rich") is None:
        raise ConfigurationError(
            'watch needs the package rich: pip install "celery-redlock[cli]". Or give --json.'
        )
    if importlib.util.find_spec("termios") is None:
        raise ConfigurationError("watch cannot read keys on this system: give --json.")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("watch needs a terminal; for programs, give --json.")
