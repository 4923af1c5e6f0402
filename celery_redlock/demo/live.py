"""
The demo as a picture that changes: nodes, accounts with their holders, and the timeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from celery_redlock.demo.nodes import NodeState
from celery_redlock.demo.runs import Run
from celery_redlock.demo.scene import ACCOUNTS, ACTS
from celery_redlock.demo.stage import Event, Stage
from celery_redlock.demo.story import short
from celery_redlock.demo.verdict import Check

__all__ = ["LiveView"]

_WIDEST = 100
_KINDS = {
    "start": "dim",
    "work": "blue",
    "fault": "bold red",
    "repair": "yellow",
    "lock": "green",
    "guard": "bold magenta",
    "end": "bold green",
}
_NODES = {
    "up": ("●", "green"),
    "stopped": ("◐", "bold yellow"),
    "killed": ("✖", "bold red"),
    "quarantined": ("◌", "cyan"),
}
_PER_ACCOUNT = sum(ACTS)


class LiveView:
    """Redraws itself in place; what was last seen stays in the terminal, with the table below."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._events: list[Event] = []

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    @property
    def _width(self) -> int:
        return min(self._console.width, _WIDEST)

    def show(self, event: Event) -> None:
        """Add an event to the timeline."""
        self._events.append(event)
        if event.kind == "start":
            self._live.update(self._timeline(len(self._events)), refresh=True)

    def refresh(self, stage: Stage) -> None:
        """Draw how everything is now."""
        top: list[RenderableType] = [
            self._title(stage),
            self._nodes(stage.nodes),
            Rule(style="dim"),
            self._accounts(stage),
            Rule(style="dim"),
        ]
        # One line of the terminal is kept for the cursor.
        used = 5 + len(ACCOUNTS) + 1
        timeline = self._timeline(max(3, self._console.height - used))
        table = Table.grid()
        table.width = self._width
        table.add_column()
        for part in (*top, timeline):
            table.add_row(part)
        self._live.update(table, refresh=True)

    def conclude(self, checks: Sequence[Check], conclusion: str, *, good: bool) -> None:
        """Leave the last picture as it is and print the table below."""
        self._live.stop()
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("")
        table.add_column("expected", justify="right")
        table.add_column("found", justify="right")
        table.add_column("")
        for check in checks:
            mark = Text("✔", "bold green") if check.holds else Text("✖ not so", "bold red")
            table.add_row(check.subject, check.expected, check.found, mark)
        style = "bold green" if good else "bold red"
        self._console.print(Group("", table, "", Text(conclusion, style)), width=self._width)

    def _title(self, stage: Stage) -> Table:
        line = Table.grid(expand=True)
        line.add_column()
        line.add_column(justify="right")
        lock = ("with the lock", "bold green")
        if not stage.scene.locked:
            lock = ("WITHOUT the lock", "bold red")
        title = Text.assemble(("celery-redlock demo: ", "bold"), lock)
        done = f"{len(stage.book.written)} of {stage.total} payments  {stage.elapsed:5.1f} s"
        line.add_row(title, Text(done, "bold"))
        return line

    def _nodes(self, nodes: Sequence[NodeState]) -> Table:
        line = Table.grid(expand=True)
        cells = []
        for number, node in enumerate(nodes, 1):
            line.add_column(ratio=1)
            symbol, style = _NODES[node.state]
            label: str = node.state
            if node.state == "quarantined":
                label = f"out {node.votes_in:.0f} s" if node.votes_in else "sits out"
            cells.append(Text(f"{symbol} {number} {label}", style, no_wrap=True))
        line.add_row(*cells)
        return line

    def _accounts(self, stage: Stage) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=True)
        table.add_column("account", no_wrap=True)
        table.add_column("written", no_wrap=True)
        table.add_column("in file", justify="right", no_wrap=True)
        table.add_column("at work", ratio=1, no_wrap=True, overflow="ellipsis")
        table.add_column("token", no_wrap=True, min_width=11)
        table.add_column("on nodes", no_wrap=True)
        for account in ACCOUNTS:
            runs = stage.book.of_account(account)
            written = sum(run.wrote is not None for run in runs)
            balance = stage.balances.get(account, 0)
            at_work = [run for run in runs if not run.is_over]
            newest = next((run.token for run in reversed(at_work) if not run.is_frozen), None)
            table.add_row(
                f"   {account}",
                Text.assemble(("━" * written, "blue"), ("·" * (_PER_ACCOUNT - written), "dim")),
                Text(f"{balance}", "bold red" if balance < written else "bold"),
                _bodies(at_work, runs[-1:]),
                "" if newest is None else short(newest),
                _places(stage.nodes, account),
            )
        return table

    def _timeline(self, height: int) -> Text:
        lines: list[Text] = []
        for event in self._events:
            style = _KINDS[event.kind]
            lead = f"{event.at:5.1f}  {event.kind:<7} "
            text = Text(event.text, "" if event.kind in ("work", "start") else style)
            for number, line in enumerate(text.wrap(self._console, self._width - len(lead))):
                start = Text(lead, style) if number == 0 else Text(" " * len(lead))
                lines.append(start + line)
        return Text("\n").join(lines[-height:])


def _bodies(at_work: Sequence[Run], last: Sequence[Run]) -> Text:
    """Say who works for an account, and whose lease is only left behind."""
    parts = [
        Text(f"payment {run.payment} ({run.pid}) {fate}", "bold red")
        for run, fate in (
            *((run, "KILLED") for run in last if run.killed),
            *((run, "FROZEN") for run in at_work if run.is_frozen),
        )
    ]
    working = [run for run in at_work if not run.is_frozen]
    if len(working) > 1:
        numbers = " + ".join(str(run.payment) for run in working)
        parts.append(Text(f"payments {numbers} AT ONCE", "bold red"))
    else:
        parts += [Text(f"payment {run.payment} ({run.pid})") for run in working]
    return Text(", ").join(parts)


def _places(nodes: Sequence[NodeState], account: str) -> Text:
    """Show on which nodes an account's lock is, as far as they can be asked."""
    text = Text()
    for node in nodes:
        symbol, style = _NODES[node.state]
        if node.state in ("up", "quarantined"):
            symbol, style = ("■", "green") if account in node.held else ("·", "dim")
        text.append(symbol, style)
    return text
