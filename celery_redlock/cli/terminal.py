"""
Output on a terminal: rows that fit its width, and the progress of a long list.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from celery_redlock.cli.output import Column, printable

#: The bar is shown if all nodes together have this many keys; fewer are read within a second.
_MANY = 20_000

#: Styles of the cells that people look for.
_STYLES = {
    "leftover": "dim",
    "finished": "dim",
    "counted": "dim",
    "queued": "cyan",
    "running": "green",
}


class Terminal:
    """
    Shows rows as they are found, with a progress bar below them that disappears at the end.

    If the rows go into a pipe, it shows only the bar, on the standard error.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._rows: list[Sequence[str]] = []
        self._has_heading = False
        self._console = Console(stderr=not sys.stdout.isatty())
        self._bar = Progress(
            TextColumn("keys"),
            BarColumn(),
            MofNCompleteColumn(),
            console=self._console,
            transient=True,
        )
        self._keys = self._bar.add_task("keys", total=None, visible=False)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._print_rows()
        self._bar.stop()

    def add(self, row: Sequence[str]) -> None:
        """Show a row, at the latest with the next call of `progress`."""
        self._rows.append(row)

    def progress(self, done: int, total: int) -> None:
        """Show how many of all keys have been looked at."""
        self._print_rows()
        self._bar.update(self._keys, completed=done, total=total, visible=total >= _MANY)

    def _print_rows(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            table = fitted_table(self._columns, rows, self._console.width)
            table.show_header = not self._has_heading
            self._has_heading = True
            self._console.print(table)


def fitted_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> Table:
    """Return a table of a terminal's width, whose columns do not depend on the rows."""
    table = Table(box=None, expand=True, pad_edge=False)
    shown = [column.narrowest <= width for column in columns]
    for column in (column for column, is_shown in zip(columns, shown, strict=True) if is_shown):
        table.add_column(
            column.heading,
            justify="right" if column.is_number else "left",
            width=None if column.share else column.width,
            ratio=column.share or None,
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in rows:
        cells = [cell for cell, is_shown in zip(row, shown, strict=True) if is_shown]
        # As text: a cell may look like markup.
        table.add_row(*(Text(printable(cell), style=_STYLES.get(cell, "")) for cell in cells))
    return table
