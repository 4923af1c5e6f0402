"""
A call's life as a drawing of one line for its key: where it is taken, and where another call lands.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest

import click

from celery_redlock.admin.explanation import Stretch

#: The widest part of the line, in characters.
_WIDEST = 30
#: The start of a part, a taken key, a free one, and the arrow: without and with Unicode.
_ASCII, _UNICODE = ("|", "=", ".", "^"), ("├", "━", "┈", "▲")
_COLOURS = {"reserved": "cyan", "held": "green", "kept": "yellow", "counted": "yellow"}


def drawing(stretches: Sequence[Stretch], width: int, encoding: str) -> Iterator[str]:
    """
    Iterate over the lines of a drawing.

    Args:
        stretches: the parts of the call's life.
        width: the most characters in a line.
        encoding: what the terminal reads; where it lacks a character, the drawing is in ASCII.
    """
    start, taken, free, arrow = _UNICODE if _has(encoding) else _ASCII
    cell = min(_WIDEST, width // len(stretches))
    yield from _cells([stretch.begins for stretch in stretches], cell)
    bars = (
        f"{start}{(taken if stretch.key else free) * 2} {stretch.key or 'free'} ".ljust(
            cell, taken if stretch.key else free
        )
        for stretch in stretches
    )
    yield "".join(
        click.style(bar, fg=_COLOURS.get(stretch.key))
        for bar, stretch in zip(bars, stretches, strict=True)
    )
    yield from _cells([stretch.lasts for stretch in stretches], cell)
    yield from _cells([f"{arrow} {stretch.another}" for stretch in stretches], cell)


def _cells(texts: Sequence[str], width: int) -> Iterator[str]:
    """Iterate over the lines of texts that are wrapped side by side."""
    columns = [textwrap.wrap(text, width - 2) for text in texts]
    for row in zip_longest(*columns, fillvalue=""):
        yield "".join(text.ljust(width) for text in row).rstrip()


def _has(encoding: str) -> bool:
    try:
        "".join(_UNICODE).encode(encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    return True
