"""
Output of commands: tables for people, JSON for programs.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """
    One column.

    Attributes:
        heading: its name.
        width: in characters; in a pipe a longer cell moves the cells after it.
        is_number: whether it is aligned to the right.
        share: on a terminal, its share of the width that the others leave; 0: it has `width`.
        narrowest: the fewest characters in a line of a terminal that shows it.
    """

    heading: str
    width: int
    is_number: bool = False
    share: int = 0
    narrowest: int = 0


def printable(text: str) -> str:
    """Return a text without characters that control the terminal."""
    return text if text.isprintable() else repr(text)


def print_text(text: str, *, indent: int = 0, colour: str | None = None) -> None:
    """Print a paragraph: on a terminal in colour and broken between words, otherwise one line."""
    before, text = " " * indent, printable(text)
    if sys.stdout.isatty():
        text = textwrap.fill(
            text,
            shutil.get_terminal_size().columns,
            initial_indent=before,
            subsequent_indent=before,
            break_long_words=False,
            break_on_hyphens=False,
        )
        before = ""
    click.secho(f"{before}{text}", fg=colour)


def print_json(data: Any) -> None:
    """Print one JSON value."""
    print(json.dumps(data, indent=2))


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str] = ()
) -> None:
    """
    Print a table: on a terminal one that fits its width if rich is installed, otherwise columns.

    Args:
        headings: the headings of the columns.
        rows: their cells, as text; what cannot be printed is shown escaped.
        numbers: headings of the columns that are aligned to the right.
    """
    shown = [list(map(printable, row)) for row in rows]
    if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        _print_fitted(headings, shown, numbers)
        return
    widths = [max(map(len, column)) for column in zip(headings, *shown, strict=True)]
    for row in (headings, *shown):
        cells = [
            cell.rjust(width) if heading in numbers else cell.ljust(width)
            for heading, cell, width in zip(headings, row, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())


def _print_fitted(
    headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str]
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in headings:
        # The first cell names the row: it is the last to be cut.
        table.add_column(
            heading,
            justify="right" if heading in numbers else "left",
            no_wrap=heading == headings[0],
        )
    for row in rows:
        table.add_row(*map(Text, row))  # a cell may look like markup
    Console().print(table)
