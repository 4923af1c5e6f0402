"""
Run the benchmark: `python -m bench [ROW ...] [--quick]`.

The numbers are reported, not asserted: the exit status is 0 unless something could not be measured.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from bench.report import print_table, write_json
from bench.rows import ROWS

_RESULTS = Path(__file__).parent / "results.json"


def main() -> None:
    """Measure the rows that were asked for, or all."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure as ratios.")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--quick", action="store_true", help="fewer rounds, less precise")
    arguments = parser.parse_args()
    unknown = set(arguments.rows) - set(ROWS)
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are: {', '.join(ROWS)}")
    console = Console()
    results = []
    for name in arguments.rows or ROWS:
        with console.status(f"measuring {name}"):
            results += ROWS[name](arguments.quick)
    print_table(results, console)
    write_json(results, _RESULTS)
    console.print(f"Written to {_RESULTS}")


main()
