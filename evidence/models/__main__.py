"""
Explore the shipped protocol exhaustively: `python -m evidence.models [NAME ...]`.

Exit status 0: every invariant held in every state. 1: a violation, told by its shortest trace, or a
shortfall: fewer states than demanded, or an event that never happened.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from evidence.models.configs import ALL
from evidence.models.examine import examine
from evidence.models.explorer import Outcome

#: States of all settings together in CI; and of each and of all in the long run.
DEMANDED, NIGHTLY_LIMIT, NIGHTLY_DEMANDED = 1_000_000, 2_000_000, 10_000_000


def tell(outcome: Outcome) -> None:
    """Print what an exploration found."""
    how_far = "all" if outcome.exhausted else "the nearest"
    print(
        f"{outcome.name:20} {how_far:>11} {outcome.states:>9,} states, {outcome.moves:>10,} moves, "
        f"{outcome.seconds:6.1f} s",
        flush=True,
    )
    if outcome.violation:
        print(f"VIOLATION in {outcome.name}: {outcome.violation}. Shortest trace:")
        for number, step in enumerate(outcome.trace, 1):
            print(f"  {number:2}. {step}")
    for event in outcome.missing:
        print(f"SHORTFALL in {outcome.name}: never reached: {event}")


def _limit(name: str, *, nightly: bool) -> int:
    return NIGHTLY_LIMIT if nightly or ALL[name].whole else ALL[name].limit


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m evidence.models", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*ALL, []], help="settings; all by default")
    parser.add_argument("--limit", type=int, help="states for each setting")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--nightly", action="store_true", help="explore farther")
    parser.add_argument("--report", type=Path, help="write the figures there as JSON")
    given = parser.parse_args(arguments)
    names = given.names or list(ALL)
    limits = {name: given.limit or _limit(name, nightly=given.nightly) for name in names}
    demanded = NIGHTLY_DEMANDED if given.nightly else DEMANDED
    begun = time.perf_counter()
    outcomes = []
    if len(names) == 1:
        outcomes.append(examine(names[0], limits[names[0]]))
        tell(outcomes[0])
    else:
        # A process for each setting gives its memory back.
        with ProcessPoolExecutor(given.processes, max_tasks_per_child=1) as pool:
            for done in as_completed([pool.submit(examine, name, limits[name]) for name in names]):
                outcomes.append(done.result())
                tell(outcomes[-1])
    states = sum(outcome.states for outcome in outcomes)
    moves = sum(outcome.moves for outcome in outcomes)
    failed = any(outcome.violation or outcome.missing for outcome in outcomes)
    print(f"{states:,} states and {moves:,} moves in {time.perf_counter() - begun:.0f} s")
    if not given.names and states < demanded:
        print(f"SHORTFALL: {demanded:,} states are demanded")
        failed = True
    if given.report:
        given.report.write_text(
            json.dumps(
                {
                    "states": states,
                    "moves": moves,
                    "demanded": demanded,
                    "seconds": time.perf_counter() - begun,
                    "failed": failed,
                    "settings": [asdict(outcome) for outcome in outcomes],
                },
                indent=2,
            )
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
