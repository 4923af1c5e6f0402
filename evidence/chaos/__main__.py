"""`python -m evidence.chaos`: run, judge, report."""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from evidence.chaos.checks import Violation
from evidence.chaos.run import Outcome, run
from evidence.chaos.tasks.run import TaskOutcome, run_tasks

_LINES_SHOWN = 40
#: How many violations of one rule are printed in full.
_EACH_SHOWN = 3
#: The part of the duration that the task layer gets after the lock layer; its drain comes on top.
_TASKS_SHARE = 0.5


def main() -> int:
    """Return the exit status: 1 when any rule did not hold."""
    parser = argparse.ArgumentParser(prog="python -m evidence.chaos", description=__doc__)
    parser.add_argument("--duration", type=float, help="seconds of faults (60; 20 outside)")
    parser.add_argument("--seed", type=int, help="plan the same faults again")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--outside", action="store_true", help="go beyond the assumptions: overlaps must be seen"
    )
    which.add_argument(
        "--no-guard",
        action="store_true",
        help="stay within the assumptions, but without the restart guard: overlaps must be seen",
    )
    which.add_argument(
        "--tasks", action="store_true", help="run the task layer alone, for the whole duration"
    )
    which.add_argument("--locks", action="store_true", help="run the lock layer alone")
    parser.add_argument(
        "--sentinel", action="store_true", help="lock on three Sentinel groups, which fail over"
    )
    parser.add_argument("--binary", help="the server program of those; the embedded one if omitted")
    parser.add_argument("--report", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    if options.sentinel and (options.outside or options.tasks):
        parser.error("--sentinel goes with neither --outside nor --tasks")
    if options.binary and not options.sentinel:
        parser.error("--binary goes with --sentinel")
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    duration = options.duration or (20.0 if options.outside else 60.0)
    # So that a time limit of a job ends servers and workers as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    locks, tasks = None, None
    if not options.tasks:
        locks = _run_locks(options, seed, duration)
    if not (options.outside or options.no_guard or options.locks or options.sentinel):
        tasks = _run_tasks(seed, duration * (1.0 if options.tasks else _TASKS_SHARE))
    if options.report:
        report = {} if locks is None else figures(locks)
        if tasks is not None:
            report = {**report, "tasks": task_figures(tasks)}
        options.report.write_text(json.dumps(report, indent=2) + "\n")
    found = [each for layer in (locks, tasks) if layer for each in layer.verdict.violations]
    return 1 if found else 0


def figures(outcome: Outcome) -> dict[str, object]:
    """Return what goes into the report about the lock layer."""
    verdict = outcome.verdict
    causes = [stale.cause for stale in verdict.plain_stale for _ in range(stale.lost)]
    return {
        "seed": outcome.seed,
        "outside": outcome.outside,
        "guard": outcome.guard,
        "sentinel": outcome.sentinel,
        "seconds": round(outcome.seconds, 1),
        "clocks": outcome.clocks,
        "acquisitions": len(outcome.history.holds),
        "faults": dict(sorted(outcome.faults.items())),
        "overlaps": len(verdict.overlaps),
        "limited_holds": verdict.limited_holds,
        "limited_most_at_once": verdict.limited_most,
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
        "violations": _listed(verdict.violations),
    }


def task_figures(outcome: TaskOutcome) -> dict[str, object]:
    """Return what goes into the report about the task layer."""
    verdict = outcome.verdict
    return {
        "seed": outcome.seed,
        "seconds": round(outcome.seconds, 1),
        "drained_after": round(outcome.drained, 1),
        "faults": dict(sorted(outcome.faults.items())),
        "calls": len(outcome.history.calls),
        "bodies": len(outcome.history.bodies),
        "bodies_ended": dict(verdict.endings),
        "outcomes": {name: dict(counts) for name, counts in verdict.outcomes.items()},
        "pairs_judged": verdict.pairs.judged,
        "pairs_run_twice": verdict.pairs.twice,
        "answered_for_revoked": verdict.pairs.revoked,
        "bodies_beside_another": verdict.beside,
        "requeued": verdict.requeued,
        "woken": verdict.woken,
        "broken": dict(verdict.broken),
        "violations": _listed(verdict.violations),
    }


def _run_locks(options: argparse.Namespace, seed: int, duration: float) -> Outcome:
    kind = "outside the assumptions" if options.outside else "within the assumptions"
    if options.sentinel:
        kind += ", on Sentinel groups"
    if options.no_guard:
        kind += ", without the restart guard"
    print(f"chaos {kind}: {duration:g} s, seed {seed}", flush=True)
    outcome = run(
        seed,
        duration,
        outside=options.outside,
        guard=not options.no_guard,
        sentinel=options.sentinel,
        binary=options.binary,
    )
    _print(figures(outcome), outcome.verdict.violations, seed)
    if not (outcome.clocks or outcome.sentinel):
        print("  NO C COMPILER (gcc, cc): no clock of any node was slowed, sped or stepped")
    return outcome


def _run_tasks(seed: int, duration: float) -> TaskOutcome:
    print(f"chaos of the task layer: {duration:g} s and a drain, seed {seed}", flush=True)
    outcome = run_tasks(seed, duration)
    _print(task_figures(outcome), outcome.verdict.violations, seed)
    return outcome


def _listed(violations: Sequence[Violation]) -> list[dict[str, object]]:
    return [
        {"rule": each.rule, "what": each.what, "lines": list(each.lines)} for each in violations
    ]


def _print(shown: Mapping[str, object], found: Sequence[Violation], seed: int) -> None:
    for name, value in shown.items():
        if name == "outcomes" and isinstance(value, dict):
            for kind, counts in value.items():
                print(f"  {kind:22} {counts}")
        elif name != "violations":
            print(f"  {name:22} {value}")
    printed: dict[str, int] = {}
    for violation in found:
        printed[violation.rule] = printed.get(violation.rule, 0) + 1
        print(f"\nVIOLATED: {violation.rule}\n  {violation.what}")
        for line in (
            violation.lines[:_LINES_SHOWN] if printed[violation.rule] <= _EACH_SHOWN else ()
        ):
            print(f"  {json.dumps(line)}")
    if found:
        print(f"\n{len(found)} violations; --seed {seed} plans the same faults again", flush=True)
    else:
        print("  every rule held", flush=True)


if __name__ == "__main__":
    sys.exit(main())
