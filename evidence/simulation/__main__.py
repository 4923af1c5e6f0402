"""
`python -m evidence.simulation`: the full run of the simulation, or a part of it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from evidence.simulation.contest import comparison
from evidence.simulation.plan import Plan
from evidence.simulation.runner import (
    PROFILES,
    Report,
    simulate,
    simulate_in_processes,
)
from evidence.simulation.shrink import shrink
from evidence.simulation.world import carry_out

_CI = 200_000
_NIGHTLY = 10_000_000

#: Of a broken history, so many lines before the end are shown.
_SHOWN = 120


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    if options.replay:
        return _replay(Path(options.replay))
    if options.compare:
        sys.stdout.writelines(f"{line}\n" for line in comparison())
        return 0
    wanted = options.acquisitions or (_NIGHTLY if options.nightly else _CI)
    if options.seeds:
        first, _, last = options.seeds.partition("-")
        report = simulate(
            range(int(first), int(last or first) + 1),
            profile=options.profile,
            stop_at_first=True,
        )
    else:
        report = simulate_in_processes(
            options.seed,
            acquisitions=wanted,
            processes=options.processes,
            profile=options.profile,
        )
    full = not options.seeds and options.profile is None and wanted >= _CI
    short = report.shortfalls(wanted) if full else []
    compared = comparison() if full else []
    written = {**report.to_json(wanted if full else 0), "comparison": compared}
    if options.report:
        Path(options.report).write_text(json.dumps(written, indent=1))
    _print_figures(report)
    sys.stdout.writelines(f"{line}\n" for line in compared)
    for plan, kind, text in report.violations[:1]:
        sys.stdout.write(f"VIOLATION seed {plan.seed} ({plan.flavour}): {kind}: {text}\n")
        if options.shrink:
            _show(shrink(plan, kind), kind)
    for line in short:
        sys.stdout.write(f"SHORTFALL {line}\n")
    return 1 if report.violations or short else 0


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m evidence.simulation", description=__doc__)
    parser.add_argument("--seeds", help="A-B: the histories of these seeds, in this process")
    parser.add_argument("--seed", type=int, default=1, help="first seed of a run by budget")
    parser.add_argument("--acquisitions", type=int, help=f"budget; {_CI} unless told")
    parser.add_argument("--nightly", action="store_true", help=f"a budget of {_NIGHTLY}")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--profile", choices=sorted(PROFILES))
    parser.add_argument("--report", help="write the figures to this file as JSON")
    parser.add_argument("--replay", help="a plan kept in a file: carry it out and show its trace")
    parser.add_argument(
        "--compare", action="store_true", help="a limit by slots and by a counter on each node"
    )
    parser.add_argument(
        "--no-shrink", dest="shrink", action="store_false", help="leave a failing plan as it is"
    )
    return parser.parse_args(argv)


def _print_figures(report: Report) -> None:
    rate = report.counters["acquisitions"] / report.seconds if report.seconds else 0.0
    sys.stdout.write(
        f"{report.histories} histories, {report.counters['acquisitions']} acquisitions in "
        f"{report.seconds:.1f} s ({rate:.0f}/s)\n"
    )
    for name, count in sorted(report.counters.items()):
        sys.stdout.write(f"  {name:<22}{count:>12}\n")


def _show(plan: Plan, kind: str) -> None:
    sys.stdout.write(f"Smallest plan found, to be kept in evidence/simulation/seeds/ ({kind}):\n")
    sys.stdout.write(json.dumps(plan.to_json()) + "\n")
    _trace(plan, last=_SHOWN)


def _trace(plan: Plan, last: int = 0) -> int:
    """Print the trace of a plan, or its last lines; return the exit status."""
    outcome = carry_out(plan, traced=True)
    sys.stdout.write("\n".join(outcome.trace[-last:]) + "\n")
    for broken in outcome.violations:
        sys.stdout.write(f"VIOLATION at {broken.at:.5f}: {broken.kind}: {broken.text}\n")
    return 1 if outcome.violations else 0


def _replay(path: Path) -> int:
    kept = json.loads(path.read_text())
    return _trace(Plan.from_json(kept.get("plan", kept)))


if __name__ == "__main__":
    sys.exit(main())
