"""Locks on a terminal: one line for each, whatever its width."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from celery_redlock.cli.lock_rows import COLUMNS
from celery_redlock.cli.terminal import Terminal, fitted_table

#: One cell for each column, as long as in a real application or longer.
ROW = [
    "invoice:customer-4711:2026-11",
    "running",
    "shop.billing.make_invoice",
    "0f8fad5b-d9cb-469f-a165-70867728950e",
    "worker-7.example.com[12345]",
    "12.5s",
    "28.1s",
    "1795590472490993",
    "5/5",
    "12",
]


def lines_of(rows: list[list[str]], width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as captured:
        console.print(fitted_table(COLUMNS, rows, width))
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_each_row_is_one_line(width: int) -> None:
    assert len(lines_of([ROW, ROW], width)) == 3


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert all(len(line) <= width for line in lines_of([ROW], width))


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_the_key_and_who_waits_are_shown_at_every_width(width: int) -> None:
    heading, row = lines_of([ROW], width)
    assert {"KEY", "VOTES", "WAITING"} <= set(heading.split())
    assert row.startswith("invoice:cust")
    assert row.rstrip().endswith("12")


def test_a_wide_terminal_shows_each_cell_whole() -> None:
    (_, row) = lines_of([ROW], 220)
    assert [cell for cell in ROW if cell not in row] == []


def test_rows_that_are_found_later_have_the_same_columns() -> None:
    assert lines_of([ROW], 120)[0] == lines_of([["a", *ROW[1:]]], 120)[0]


@pytest.mark.parametrize(("total", "is_shown"), [(19_999, False), (20_000, True)])
def test_a_bar_is_shown_where_there_are_many_keys(
    total: int, is_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen)
    with Terminal(COLUMNS) as terminal:
        terminal.progress(total // 2, total)
    assert (f"{total // 2}/{total}" in screen.getvalue()) is is_shown
