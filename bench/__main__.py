"""
Run the benchmark: `python -m bench [ROW ...] [--quick] [--publish]`.

The numbers are reported, not asserted: the exit status is 0 unless something could not be measured.
Each row runs in a process of its own, so it finds no app or connection of another one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rich.console import Console

from bench.report import print_table, write_json
from bench.results import Result
from bench.rows import ON_REQUEST, ROWS

_ROOT = Path(__file__).resolve().parents[1]
_RESULTS = _ROOT / "build" / "results.json"
#: The figures of the page about speed.
_MEASURED = _ROOT / "docs" / "measured.json"


def main() -> int:
    """Measure the rows that were asked for, or all; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure as ratios.")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--quick", action="store_true", help="fewer rounds, less precise")
    parser.add_argument("--publish", action="store_true", help=f"also write {_MEASURED}")
    arguments = parser.parse_args()
    if arguments.publish and (arguments.rows or arguments.quick):
        parser.error("--publish needs a whole run: no ROW and no --quick")
    unknown = set(arguments.rows) - set(ROWS)
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are: {', '.join(ROWS)}")
    console = Console()
    results, failed = [], []
    for name in arguments.rows or [name for name in ROWS if name not in ON_REQUEST]:
        with console.status(f"measuring {name}"):
            try:
                results += _measured(name, arguments.quick)
            except Exception:
                console.print_exception()
                failed.append(name)
    print_table(results, console)
    _RESULTS.parent.mkdir(exist_ok=True)
    for path in (_RESULTS, _MEASURED) if arguments.publish and not failed else (_RESULTS,):
        write_json(results, path)
        console.print(f"Written to {path}")
    if failed:
        console.print(f"Not measured: {', '.join(failed)}")
    return int(bool(failed))


def _measured(name: str, quick: bool) -> list[Result]:
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=spawning) as process:
        return process.submit(ROWS[name], quick).result()


if __name__ == "__main__":
    sys.exit(main())
