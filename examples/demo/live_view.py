"""
The demo as a picture in a terminal: nodes, accounts with their locks, and the timeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from redis.exceptions import RedisError
from rich.console import Console, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from examples.demo.runs import Run
from examples.demo.story import ACCOUNTS, ACTS, TOTAL, Demo, Event, short

WIDEST = 100
KINDS = {
    "start": "dim",
    "work": "blue",
    "fault": "bold red",
    "repair": "yellow",
    "lock": "green",
    "fence": "bold magenta",
    "end": "bold green",
}
NODES = {
    "running": ("●", "green"),
    "paused": ("◐", "bold yellow"),
    "dead": ("✖", "bold red"),
    "out": ("◌", "cyan"),
}
PER_ACCOUNT = sum(ACTS)


class LiveView:
    """Redraws itself in place; the last picture stays in the terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._events: list[Event] = []

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, event: Event) -> None:
        """Add an event to the timeline."""
        self._events.append(event)

    def refresh(self, demo: Demo) -> None:
        """Draw the present state."""
        self._live.update(self.picture(demo), refresh=True)

    def picture(self, demo: Demo) -> RenderableType:
        """Return the present state as it fits into the terminal."""
        states = [
            "out" if index in demo.out else demo.nodes.state(index)
            for index in range(len(demo.nodes))
        ]
        parts: list[RenderableType] = [
            _title(demo),
            _nodes(states),
            Rule(style="dim"),
            _accounts(demo, states),
            Rule(style="dim"),
        ]
        # Title, nodes, two rules and the table's head; one line is kept for the cursor.
        used = 5 + len(ACCOUNTS) + 1
        width = min(self._console.width, WIDEST)
        picture = Table.grid()
        picture.width = width
        picture.add_column()
        for part in (*parts, self._timeline(width, max(3, self._console.height - used))):
            picture.add_row(part)
        return picture

    def _timeline(self, width: int, height: int) -> Text:
        lines: list[Text] = []
        for event in self._events:
            style = KINDS[event.kind]
            head = f"{event.at:5.1f}  {event.kind:<7} "
            text = Text(event.text, "" if event.kind == "work" else style)
            for number, line in enumerate(text.wrap(self._console, width - len(head))):
                lines.append((Text(" " * len(head)) if number else Text(head, style)) + line)
        return Text("\n").join(lines[-height:])


def _title(demo: Demo) -> Table:
    line = Table.grid(expand=True)
    line.add_column()
    line.add_column(justify="right")
    lock = ("with the lock", "bold green") if demo.locked else ("WITHOUT the lock", "bold red")
    done = f"{len(demo.runs.written)} of {TOTAL} payments  {demo.elapsed:5.1f} s"
    line.add_row(Text.assemble(("celery-redlock demo: ", "bold"), lock), Text(done, "bold"))
    return line


def _nodes(states: Sequence[str]) -> Table:
    line = Table.grid(expand=True)
    cells = []
    for number, state in enumerate(states, 1):
        line.add_column(ratio=1)
        symbol, style = NODES[state]
        label = "does not vote" if state == "out" else state
        cells.append(Text(f"{symbol} {number} {label}", style, no_wrap=True))
    line.add_row(*cells)
    return line


def _accounts(demo: Demo, states: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=True)
    for head in ("account", "written", "in file"):
        table.add_column(head, no_wrap=True)
    table.add_column("running", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column("token", no_wrap=True, min_width=11)
    table.add_column("on nodes", no_wrap=True)
    balances, locked = demo.balances, _locked_accounts(demo, states)
    for account in ACCOUNTS:
        runs = demo.runs.of(account=account)
        written = sum("wrote" in run.at for run in runs)
        running = [run for run in runs if not run.is_over]
        newest = next((run.token for run in reversed(running) if not run.is_frozen), None)
        on_nodes = Text()
        for state, accounts in zip(states, locked, strict=True):
            held = ("■", "green") if account in accounts else ("·", "dim")
            on_nodes.append(*(NODES[state] if state in ("paused", "dead") else held))
        table.add_row(
            f"   {account}",
            Text.assemble(("━" * written, "blue"), ("·" * (PER_ACCOUNT - written), "dim")),
            Text(f"{balances[account]}", "bold red" if balances[account] < written else "bold"),
            _bodies(running, runs[-1:]),
            "" if newest is None else short(newest),
            on_nodes,
        )
    return table


def _locked_accounts(demo: Demo, states: Sequence[str]) -> list[set[str]]:
    """Return the accounts whose lock is on each node; none for a node that cannot answer."""
    keys = [f"redlock:account:{account}" for account in ACCOUNTS]
    found: list[set[str]] = []
    for index, state in enumerate(states):
        values: Sequence[object] = ()
        if state in ("running", "out"):
            try:
                values = demo.nodes.client(index).mget(keys)
            except RedisError:
                values = ()
        found.append({account for account, value in zip(ACCOUNTS, values, strict=False) if value})
    return found


def _bodies(running: Sequence[Run], last: Sequence[Run]) -> Text:
    """Describe the bodies of an account, and the process whose lease has yet to expire."""
    states = [(run, "KILLED") for run in last if "killed" in run.at]
    states += [(run, "FROZEN") for run in running if run.is_frozen]
    parts = [Text(f"payment {r.payment} ({r.pid}) {state}", "bold red") for r, state in states]
    working = [run for run in running if not run.is_frozen]
    if len(working) > 1:
        numbers = " + ".join(str(run.payment) for run in working)
        parts.append(Text(f"payments {numbers} AT ONCE", "bold red"))
    else:
        parts += [Text(f"payment {run.payment} ({run.pid})") for run in working]
    return Text(", ").join(parts)
