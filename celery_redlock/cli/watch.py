"""
`celery-redlock watch`: locks, those who wait, and nodes, live on a terminal.
"""

from __future__ import annotations

import contextlib
import heapq
import select
import sys
import termios
import tty
from collections.abc import Iterator

import click

from celery_redlock.admin.diagnosis import Severity
from celery_redlock.admin.lock_list import LockEntry, list_locks
from celery_redlock.cli.doctor import findings_about
from celery_redlock.cli.locks import COLUMNS, cells_of, client_of, task_names_of
from celery_redlock.cli.target import Target
from celery_redlock.core import Redlock
from celery_redlock.errors import ConfigurationError, RedlockError

try:
    from rich.console import Group, RenderableType
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text
except ImportError as error:
    raise ConfigurationError(
        'watch needs the package rich: pip install "celery-redlock[cli]"'
    ) from error

__all__ = ["watch_locks"]

#: Lines of the screen that are not for locks: headings, nodes, and the last one.
_OTHER_LINES = 8


def watch_locks(target: Target, pattern: str, key_prefix: str | None, *, every: float) -> int:
    """
    Show locks and nodes until `q` is pressed, and return 0.

    Of many locks, those that most wait for and that are held for longest.

    Args:
        target: the nodes or the app.
        pattern: glob on the keys, as users write them.
        key_prefix: of the keys, if no app names it.
        every: seconds between two looks at the nodes.

    Raises:
        click.UsageError: there is no terminal.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("watch needs a terminal; list --json is for programs.")
    names = task_names_of(target)
    with (
        client_of(target, key_prefix) as redlock,
        Live(screen=True, auto_refresh=False) as live,
        _single_keys(),
    ):
        while True:
            shown = max(1, live.console.height - _OTHER_LINES)
            live.update(_view(target, redlock, pattern, names, shown), refresh=True)
            if _pressed(every) == "q":
                return 0


@contextlib.contextmanager
def _single_keys() -> Iterator[None]:
    """Read keys as they are pressed, without showing them."""
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _pressed(seconds: float) -> str:
    """Return the key that is pressed within so many seconds; empty if none is."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return sys.stdin.read(1) if ready else ""


def _view(
    target: Target, redlock: Redlock, pattern: str, names: dict[str, str], shown: int
) -> RenderableType:
    counted = 0

    def entries() -> Iterator[LockEntry]:
        nonlocal counted
        for entry in list_locks(redlock, pattern=pattern, names=names):
            counted += 1
            yield entry

    try:
        found = heapq.nsmallest(shown, entries(), key=_urgency)
        problem = ""
    except RedlockError as exc:
        found, problem = [], str(exc)
    locks = Table(expand=True, box=None)
    for heading, width in COLUMNS.widths.items():
        locks.add_column(heading, justify="left" if width < 0 else "right", no_wrap=True)
    for entry in found:
        locks.add_row(*map(Text, cells_of(entry)))
    more = f"{counted} locks" + (f", {counted - len(found)} not shown" if counted > shown else "")
    return Group(_nodes(target), locks, Text(problem or more, style="red" if problem else "dim"))


def _urgency(entry: LockEntry) -> tuple[int, float]:
    return -entry.waiting, 0.0 if entry.since is None else entry.since.timestamp()


def _nodes(target: Target) -> RenderableType:
    found = [one for one in findings_about(target)[1] if one.severity is not Severity.INFO]
    if not found:
        return Text("nodes: nothing is wrong", style="green")
    return Text(
        "\n".join(f"{one.severity} [{one.code}] {one.node or 'all nodes'}" for one in found),
        style="red" if found[0].severity is Severity.ERROR else "yellow",
    )
