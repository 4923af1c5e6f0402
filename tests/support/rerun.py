"""
Runs pytest, and what failed once more by itself: `python -m tests.support.rerun [ARGUMENT]...`.

Takes pytest's arguments. Tests run beside each other; those that failed run again one at a time,
with nothing beside them, as with `regrtest --rerun` of CPython. A test that fails again fails
the run. One that passes alone is named at the end and in `build/passed-alone.txt`: it has a
fault to be found. After more than `NOISE` failures nothing runs again, and each process stops
after so many of its own: where locks stay, hundreds of tests would wait for their deadlines.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

#: How many failed tests a busy machine may explain.
NOISE = 15

PASSED_ALONE = Path("build/passed-alone.txt")

#: Where pytest remembers what failed.
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def run(arguments: list[str]) -> int:
    """Run the tests, at most twice; return pytest's exit status."""
    pytest = [sys.executable, "-m", "pytest", *arguments]
    PASSED_ALONE.unlink(missing_ok=True)
    first = ["--cache-clear", "--maxfail", str(NOISE + 1)]
    status = subprocess.run([*pytest, *first], check=False).returncode
    failed = last_failed()
    if status != 1 or len(failed) > NOISE:
        return status
    print(f"\n{len(failed)} failed, and run once more, one at a time:", flush=True)
    again = ["--last-failed", "--last-failed-no-failures", "none", "--numprocesses", "0"]
    status = subprocess.run([*pytest, *again], check=False).returncode
    if alone := sorted(failed - last_failed()):
        PASSED_ALONE.parent.mkdir(exist_ok=True)
        PASSED_ALONE.write_text("".join(f"{test}\n" for test in alone))
        print(f"{len(alone)} passed only alone: {', '.join(alone)}", flush=True)
    return status


def last_failed() -> set[str]:
    """Return what failed, and has not passed since."""
    return set(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else set()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
