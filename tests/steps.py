"""
Runs the steps of the gate, or of all evidence: `python3 -m tests.steps gate`, `... full`.

A step runs also after one that failed. What it prints is shown and kept in `build/steps`. A
table at the end has each step with its seconds and its result; under it are the names of what
failed, and where to read more. Needs Python and make; each target sets up what it needs.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

#: What each step is called, and its command. The last one of the gate prints how many tests passed.
GATE = {
    "style, types, layers": "make lint",
    "demo": "make demo",
    "documentation": "make docs",
    "wheel and source archive": "make dist",
    "tests": "make test",
}
FULL = {
    **GATE,
    "wheel and source archive": "make test-dist",
    "tests": "make test ALL=1",
    "durations": "make test-durations",
    "lowest versions": "make test-lowest",
    "newest versions": "make test-newest",
    "Debian's servers": "make test-system",
    "containers": "make test-containers",
    "models, simulation, planted faults": "make proof",
    "chaos": "make chaos",
    "each row of the benchmark": "make bench QUICK=1",
}
#: Steps whose failure is named in the table and does not fail the run.
NEWS = {"newest versions"}
STEPS = {"gate": GATE, "full": FULL}

OUTPUT = Path("build/steps")

#: Lines of a step's output that name what failed.
FAILURE = re.compile(
    r"^(FAILED|ERROR|FAILED:|VIOLATED:|SHORTFALL:|survived|broken) "
    r"|: (error|WARNING): |^make: \*\*\*"
)
PASSED_ALONE = re.compile(r"^\d+ passed only alone: ")
MOST_LINES = 12


@dataclass(frozen=True)
class Done:
    """How a step ended; its status is 0 where it passed."""

    name: str
    seconds: float
    status: int
    output: Path

    def lines(self, pattern: re.Pattern[str]) -> list[str]:
        """Return the lines of its output that a pattern finds."""
        text = self.output.read_text(errors="replace")
        return [line for line in text.splitlines() if pattern.search(line)]


def run(name: str, command: str) -> Done:
    """Run one step; show and keep what it prints."""
    print(f"\n== {name} ({time.strftime('%H:%M:%S', time.gmtime())})", flush=True)
    began = time.monotonic()
    path = OUTPUT / f"{re.sub('[^a-z]+', '-', name.lower())}.txt"
    with (
        path.open("wb") as kept,
        subprocess.Popen(
            command.split(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            kept.write(line)
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
    return Done(name, time.monotonic() - began, process.returncode, path)


def report(steps: list[Done]) -> str:
    """Return the table of all steps, and what to look at."""
    lines = ["", "| step | seconds | result |", "|---|---|---|"]
    for step in steps:
        result = "failed" if step.status else "passed"
        lines.append(f"| {step.name} | {step.seconds:.0f} | {result} |")
    for step in steps:
        lines += step.lines(PASSED_ALONE)
    for step in steps:
        if step.status:
            # The last ones: what ran twice failed there again.
            named = list(dict.fromkeys(step.lines(FAILURE)))[-MOST_LINES:]
            lines += ["", f"{step.name} failed; its output is in {step.output}", *named]
    return "\n".join(lines)


def main(which: str) -> int:
    """Run all steps; return 1 where one failed."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    done = [run(name, command) for name, command in STEPS[which].items()]
    print(report(done), flush=True)
    return int(any(step.status for step in done if step.name not in NEWS))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
