"""
The whole screen of a terminal, which shows one look at the nodes after the other.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from rich.console import ConsoleDimensions, Group
from rich.live import Live
from rich.text import Text

from celery_redlock.cli.lock_rows import COLUMNS, cells_of
from celery_redlock.cli.output import printable
from celery_redlock.cli.terminal import fitted_table

_STYLES = {"error": "red", "warning": "yellow"}

#: Number of latest changes that are shown.
_MOST_CHANGES = 6

#: Fewest lines for locks, however small the terminal is.
_FEWEST_ROWS = 3

JsonObject = Mapping[str, Any]


def show(looks: Iterable[JsonObject], every: float) -> None:
    """
    Show each look of `LiveView` in place of the previous one, until `q` is pressed.

    It waits `every` seconds after each look, and restores the terminal at the end.
    """
    with _single_keys(), Live(screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        for look in looks:
            live.update(_drawn(look, live.console.size), refresh=True)
            if _quits(every):
                return


def _drawn(look: JsonObject, size: ConsoleDimensions) -> Group:
    """Return a look as it fits a terminal of this size."""
    above = [Text(_summary(look), style="bold"), *_trouble(look)]
    below = [*_changes(look), Text("q quits", style="dim")]
    # A heading and an empty line around the rows.
    left = max(_FEWEST_ROWS, size.height - len(above) - len(below) - 2)
    rows = _by_urgency(look)
    table = fitted_table(COLUMNS, [cells_of(row) for row in rows[:left]], size.width)
    for line in (*above, *below):
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*above, table, Text(), *below)


def _quits(seconds: float) -> bool:
    """Wait until a key is pressed, this many seconds at most; return whether `q` was."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    # All keys that wait: those that `sys.stdin` had read ahead would be seen by no later `select`.
    return bool(ready) and b"q" in os.read(sys.stdin.fileno(), 1024)


@contextlib.contextmanager
def _single_keys() -> Iterator[None]:
    """Read keys as they are pressed, without showing them."""
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _by_urgency(state: JsonObject) -> list[JsonObject]:
    """Return the rows of locks: keys with the most waiters first, slots of one key together."""
    groups = state["locks"]["keys"] if state["locks"] else []

    def urgency(group: JsonObject) -> tuple[int, float]:
        return -group["waiting"], -max(row["held_for"] or 0.0 for row in group["rows"])

    return [row for group in sorted(groups, key=urgency) for row in group["rows"]]


def _summary(state: JsonObject) -> str:
    nodes, locks = state["nodes"], state["locks"]
    answer = sum(node["reachable"] for node in nodes)
    health = f"{answer} of {len(nodes)} nodes answer."
    if not locks:
        return f"{health} The locks are not known."
    waiting = [group["waiting"] for group in locks["keys"] if group["waiting"]]
    part = "" if locks["part"] >= 1 else f" in {locks['part']:.0%} of the keys"
    hidden = locks["found"] - locks["shown"]
    return (
        f"{health} Held: {locks['found']}{part}{f', {hidden} not shown' if hidden else ''}. "
        f"Waiting: {sum(waiting)} for {len(waiting)} key{'s' * (len(waiting) != 1)}."
    )


def _trouble(state: JsonObject) -> list[Text]:
    """Return a line for each problem; informative findings are for `doctor`."""
    problem = state["problem"]
    lines = [Text(f"error {printable(problem)}", style="red")] if problem else []
    found = [one for one in state["findings"] if one["severity"] in _STYLES]
    lines += [
        Text(
            f"{one['severity']} [{one['code']}] {one['node'] or ''} {printable(one['message'])}",
            style=_STYLES[one["severity"]],
        )
        for one in found
    ]
    return lines or [Text("nothing is wrong with the nodes", style="green")]


def _changes(state: JsonObject) -> list[Text]:
    return [
        Text(
            f"{_local_time(one['at'])}  {printable(one.get('node') or one['key'])}  "
            f"{one['what']}  {printable(one.get('task') or one.get('detail') or '')}",
            style="dim",
        )
        for one in state["changes"][:_MOST_CHANGES]
    ]


def _local_time(moment: str) -> str:
    return f"{datetime.fromisoformat(moment).astimezone():%H:%M:%S}"
