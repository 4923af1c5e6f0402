"""
`celery-redlock watch`: locks, waiters and nodes, live on a terminal or as JSON.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import select
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from celery_redlock.admin.live_view import LiveView
from celery_redlock.cli.target import Target
from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable


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
        with _json_lines(every) if as_json else _screen(every) as show:
            while show(view.look([text])[text]):
                pass
    return 0


@contextlib.contextmanager
def _json_lines(every: float) -> Iterator[Callable[[dict[str, Any]], bool]]:
    def show(state: dict[str, Any]) -> bool:
        print(json.dumps(state), flush=True)
        time.sleep(every)
        return True

    yield show


@contextlib.contextmanager
def _screen(every: float) -> Iterator[Callable[[dict[str, Any]], bool]]:
    """Yield a function that shows a look on the screen, and returns False once `q` is pressed."""
    if importlib.util.find_spec("rich") is None:
        raise ConfigurationError(
            'watch needs the package rich: pip install "celery-redlock[cli]". Or give --json.'
        )
    if importlib.util.find_spec("termios") is None:
        raise ConfigurationError("watch cannot read keys on this system: give --json.")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("watch needs a terminal; for programs, give --json.")
    from celery_redlock.cli.screen import Screen

    with Screen() as screen:

        def show(state: dict[str, Any]) -> bool:
            screen.show(state)
            return _pressed(every) != "q"

        yield show


def _pressed(seconds: float) -> str:
    """Return the key that is pressed within this many seconds; empty if none is."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return sys.stdin.read(1) if ready else ""
