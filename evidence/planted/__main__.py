"""
Plant every fault and see it killed: `python -m evidence.planted [NAME ...]`.

Exit status 1 if a fault survives or its killer breaks.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from evidence.planted.planting import Ending, try_to_kill
from evidence.planted.registry import EQUIVALENT, FAULTS

#: Fewer planted faults than this say little.
DEMANDED = 20

_SHOWN = 12


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m evidence.planted", description=__doc__)
    parser.add_argument("names", nargs="*", help="faults, or parts of their names")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="show what killed each")
    parser.add_argument("--report", type=Path, help="write the figures there as JSON")
    given = parser.parse_args(arguments)
    chosen = [
        fault
        for fault in FAULTS
        if not given.names or any(name in fault.name for name in given.names)
    ]
    begun = time.perf_counter()
    endings: list[Ending] = []
    with ThreadPoolExecutor(given.processes) as pool:
        for done in as_completed([pool.submit(try_to_kill, fault) for fault in chosen]):
            ending = done.result()
            endings.append(ending)
            print(f"{ending.end:9} {ending.seconds:6.1f} s  {ending.name}", flush=True)
            if given.verbose or ending.end != "killed":
                for line in ending.said.splitlines()[-_SHOWN if not given.verbose else 0 :]:
                    print(f"            {line}")
    killed = sum(ending.end == "killed" for ending in endings)
    print(
        f"{killed} of {len(chosen)} planted faults killed in {time.perf_counter() - begun:.0f} s; "
        f"{len(EQUIVALENT)} equivalent ones are not planted"
    )
    short = not given.names and len(chosen) < DEMANDED
    if short:
        print(f"SHORTFALL: {DEMANDED} planted faults are demanded")
    failed = killed < len(chosen) or short or not chosen
    if given.report:
        figures = {
            "planted": len(chosen),
            "killed": killed,
            "equivalent": EQUIVALENT,
            "seconds": time.perf_counter() - begun,
            "failed": failed,
            "endings": {ending.name: [ending.end, round(ending.seconds, 1)] for ending in endings},
        }
        given.report.write_text(json.dumps(figures, indent=2))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
