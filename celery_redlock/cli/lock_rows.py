"""
Locks as rows: a table that fits a terminal, columns for pipes, and JSON for programs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from celery_redlock.admin.live_view import row_of
from celery_redlock.admin.lock_list import LockEntry, Progress, as_data
from celery_redlock.cli.output import Column, printable
from celery_redlock.errors import RedlockError
from celery_redlock.protocol.texts import readable

if TYPE_CHECKING:
    from celery_redlock.cli.terminal import Terminal

NOTHING = "No lock is held."


COLUMNS = (
    Column(heading="KEY", width=32, share=4),
    Column(heading="STATE", width=8),
    Column(heading="TASK", width=20, share=3),
    Column(heading="ID", width=36, share=4),
    Column(heading="HOST", width=20, share=3, narrowest=100),
    Column(heading="AGE", width=7, is_number=True),
    Column(heading="LEFT", width=7, is_number=True),
    Column(heading="TOKEN", width=16, is_number=True, narrowest=150),
    Column(heading="VOTES", width=5, is_number=True),
    Column(heading="WAITING", width=7, is_number=True),
)


def print_locks(
    name: str,
    entries_of: Callable[[Progress | None], Iterable[LockEntry]],
    *,
    as_json: bool,
    if_none: str = NOTHING,
) -> int:
    """
    Print locks, each as soon as it is found, and return 1 if there is none.

    Args:
        name: the name of the list in the JSON object.
        entries_of: returns the locks; its argument is the `progress` of `list_locks`.
        as_json: print one JSON object; if nodes fail after the first lock, it has an `error`.
        if_none: what to print if there is none; JSON has an empty list.
    """
    count = 0
    try:
        with _terminal(as_json=as_json) as terminal:
            progress = terminal.progress if terminal else None
            for count, entry in enumerate(entries_of(progress), 1):
                if as_json:
                    # If nodes fail before the first lock, nothing is printed.
                    before = f'{{"{name}": [' if count == 1 else ","
                    print(f"{before}\n  {json.dumps(as_data(entry))}", end="", flush=True)
                elif terminal is not None and sys.stdout.isatty():
                    terminal.add(cells_of(row_of(entry)))
                else:
                    _print_row(cells_of(row_of(entry)), is_first=count == 1)
    except RedlockError as exc:
        if as_json and count:
            print(f'\n], "error": {json.dumps(str(exc))}}}')
        raise
    if as_json:
        print("\n]}" if count else f'{{"{name}": []}}')
    elif not count:
        click.echo(if_none)
    return 0 if count else 1


@contextlib.contextmanager
def _terminal(*, as_json: bool) -> Iterator[Terminal | None]:
    """Yield a terminal for rows, or only for the bar; None without a terminal or without rich."""
    has_screen = sys.stdout.isatty()
    is_free = not as_json if has_screen else sys.stderr.isatty()
    if not is_free or importlib.util.find_spec("rich") is None:
        yield None
        return
    from celery_redlock.cli.terminal import Terminal

    with Terminal(COLUMNS) as terminal:
        yield terminal


def _print_row(cells: Sequence[str], *, is_first: bool) -> None:
    headings = [column.heading for column in COLUMNS]
    for row in (headings, cells) if is_first else (cells,):
        shown = [
            text.rjust(column.width) if column.is_number else text.ljust(column.width)
            for text, column in zip(map(printable, row), COLUMNS, strict=True)
        ]
        print("  ".join(shown).rstrip(), flush=True)


def cells_of(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of a row of `row_of`, one for each of `COLUMNS`."""
    return [
        row["key"] if row["slot"] is None else f"{row['key']}#{row['slot']}",
        row["state"],
        row["task"] or "-",
        row["holder"],
        "-" if row["host"] is None else f"{row['host']}[{row['pid']}]",
        "-" if row["held_for"] is None else _duration(row["held_for"]),
        "never" if row["expires_in"] < 0 else _duration(row["expires_in"]),
        "-" if row["token"] is None else str(row["token"]),
        f"{row['votes']}/{row['nodes']}",
        str(row["waiting"]),
    ]


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{readable(seconds)}s"
