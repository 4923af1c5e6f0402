"""`python -m tests.chaos`: run, judge, report."""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import sys
from pathlib import Path

from tests.chaos.page import render_page
from tests.chaos.run import Outcome, run

_LINES_SHOWN = 40


def main() -> int:
    """Return the exit status: 1 when any rule did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--duration", type=float, help="seconds of faults (60; 20 outside)")
    parser.add_argument("--seed", type=int, help="plan the same faults again")
    parser.add_argument(
        "--outside", action="store_true", help="go beyond the assumptions: overlaps must be seen"
    )
    parser.add_argument(
        "--no-guard",
        action="store_true",
        help="stay within the assumptions, but without the restart guard: overlaps must be seen",
    )
    parser.add_argument(
        "--tasks", action="store_true", help="run the task layer alone, for the whole duration"
    )
    parser.add_argument("--html", type=Path, help="write a page with a picture of the run")
    parser.add_argument("--report", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    duration = options.duration or (20.0 if options.outside else 60.0)
    # So that a time limit of a job ends servers and workers as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    kind = "outside the assumptions" if options.outside else "within the assumptions"
    if options.no_guard:
        kind += ", without the restart guard"
    print(f"chaos {kind}: {duration:g} s, seed {seed}", flush=True)
    outcome = run(seed, duration, outside=options.outside, guard=not options.no_guard)
    if options.html:
        options.html.write_text(render_page(outcome))
    if options.report:
        options.report.write_text(json.dumps(figures(outcome), indent=2) + "\n")
    _print(outcome)
    return 1 if outcome.verdict.violations else 0


def figures(outcome: Outcome) -> dict[str, object]:
    """Return what goes into the report."""
    verdict = outcome.verdict
    causes = [stale.cause for stale in verdict.plain_stale for _ in range(stale.lost)]
    return {
        "seed": outcome.seed,
        "outside": outcome.outside,
        "guard": outcome.guard,
        "seconds": round(outcome.seconds, 1),
        "clocks": outcome.clocks,
        "acquisitions": len(outcome.history.holds),
        "faults": dict(sorted(outcome.faults.items())),
        "overlaps": len(verdict.overlaps),
        "fenced_writes": verdict.fenced_writes,
        "fenced_refused": verdict.fenced_refused,
        "fenced_lost": verdict.fenced_lost,
        "plain_writes": verdict.plain_writes,
        "plain_lost": verdict.plain_lost,
        "plain_lost_to_pauses": verdict.plain_lost_to_pauses,
        "plain_lost_causes": {cause: causes.count(cause) for cause in sorted(set(causes))},
        "losses_reported": verdict.losses,
        "losses_reported_late": verdict.late_losses,
        "revived_after": outcome.revived,
        "violations": [
            {"rule": each.rule, "what": each.what, "lines": list(each.lines)}
            for each in verdict.violations
        ],
    }


def _print(outcome: Outcome) -> None:
    shown = figures(outcome)
    found = outcome.verdict.violations
    for name, value in shown.items():
        if name != "violations":
            print(f"  {name:22} {value}")
    if not outcome.clocks:
        print("  NO C COMPILER (gcc, cc): no clock of any node was slowed, sped or stepped")
    for violation in found:
        print(f"\nVIOLATED: {violation.rule}\n  {violation.what}")
        for line in violation.lines[:_LINES_SHOWN]:
            print(f"  {json.dumps(line)}")
    if found:
        print(f"\n{len(found)} violations; --seed {outcome.seed} plans the same faults again")
    else:
        print("  every rule held")


if __name__ == "__main__":
    sys.exit(main())
