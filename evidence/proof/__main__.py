"""
Run the models, the simulation and the planted faults: `python -m evidence.proof [--nightly]`.

Exit status 1 on any violation and on any shortfall: states, acquisitions, coverage, faults.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STEPS = ("models", "simulation", "planted")


def run(step: str, arguments: list[str], report: Path) -> tuple[int, dict[str, Any]]:
    """Run one step, show what it says, and return its exit status and its figures."""
    command = [sys.executable, "-m", f"evidence.{step}", *arguments, "--report", str(report)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"  {line}", end="", flush=True)
    figures = json.loads(report.read_text()) if report.exists() else {}
    return process.returncode, figures


def summary(figures: dict[str, dict[str, Any]]) -> list[str]:
    """Return the lines to end with."""
    lines = []
    if models := figures.get("models"):
        ends = [setting["exhausted"] for setting in models["settings"]]
        lines.append(
            f"states explored       {models['states']:>12,} of {models['demanded']:,} demanded, "
            f"{models['moves']:,} moves, {sum(ends)} of {len(ends)} settings to the end"
        )
    if simulation := figures.get("simulation"):
        lines.append(f"schedules run         {simulation['schedules']:>12,}")
        lines.append(f"acquisitions          {simulation['acquisitions']:>12,}")
        lines += [
            f"  {name:<19} {count:>12,}" for name, count in sorted(simulation["coverage"].items())
        ]
    if faults := figures.get("planted"):
        lines.append(
            f"faults killed         {faults['killed']:>12,} of {faults['planted']} planted"
        )
        lines.append(f"equivalent, not planted{len(faults['equivalent']):>11,}")
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m evidence.proof", description=__doc__)
    parser.add_argument("--nightly", action="store_true", help="hours instead of minutes")
    parser.add_argument("--report", type=Path, help="write all figures there as JSON")
    given = parser.parse_args(arguments)
    figures: dict[str, dict[str, Any]] = {}
    failed = []
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as made:
        for step in STEPS:
            print(f"== {step}", flush=True)
            more = ["--nightly"] if given.nightly and step != "planted" else []
            status, found = run(step, more, Path(made) / f"{step}.json")
            if found:
                figures[step] = found
            if status or not found:
                failed.append(f"{step} (exit status {status})")
    print(f"== proof, {time.perf_counter() - begun:.0f} s")
    print("\n".join(summary(figures)))
    print(f"FAILED: {', '.join(failed)}" if failed else "every promise held, every fault was seen")
    if given.report:
        given.report.write_text(json.dumps(figures, indent=2))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
