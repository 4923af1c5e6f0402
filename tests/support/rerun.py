"""
Runs pytest, and what failed once more by itself: `python -m tests.support.rerun [ARGUMENT]...`.

Takes pytest's arguments. Tests run beside each other; those that failed run again one at a time,
with nothing beside them, as with `regrtest --rerun` of CPython. A test that fails again fails
the run. One that passes alone is named at the end and in `build/passed-alone.txt`, with the reason
of its failure: it has a fault to be found. After more than `NOISE` failures nothing runs again, and
each process stops after so many of its own: where locks stay, hundreds of tests would wait for
their deadlines.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

#: How many failed tests a busy machine may explain.
NOISE = 15

PASSED_ALONE = Path("build/passed-alone.txt")

#: What pytest writes about each test of the first run.
REPORT = Path("build/tests.xml")

#: Where pytest remembers what failed.
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def run(arguments: list[str]) -> int:
    """Run the tests, at most twice; return pytest's exit status."""
    pytest = [sys.executable, "-m", "pytest", *arguments]
    PASSED_ALONE.unlink(missing_ok=True)
    first = ["--cache-clear", "--maxfail", str(NOISE + 1), f"--junitxml={REPORT}"]
    status = subprocess.run([*pytest, *first], check=False).returncode
    failed = last_failed()
    if status != 1 or len(failed) > NOISE:
        return status
    print(f"\n{len(failed)} failed, and run once more, one at a time:", flush=True)
    again = ["--last-failed", "--last-failed-no-failures", "none", "--numprocesses", "0"]
    status = subprocess.run([*pytest, *again], check=False).returncode
    if alone := sorted(failed - last_failed()):
        reasons = why_failed()
        named = [f"{test} ({reasons.get(test, 'no reason is known')})" for test in alone]
        PASSED_ALONE.parent.mkdir(exist_ok=True)
        PASSED_ALONE.write_text("".join(f"{test}\n" for test in named))
        print(f"{len(alone)} passed only alone: {', '.join(named)}", flush=True)
    return status


def why_failed() -> dict[str, str]:
    """Return the first line of each failure in the first run, by the name of the test."""
    return {
        f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}": (
            found.get("message", "").partition("\n")[0][:200]
        )
        for case in ElementTree.parse(REPORT).iter("testcase")
        for found in (*case.findall("failure"), *case.findall("error"))
    }


def last_failed() -> set[str]:
    """Return what failed, and has not passed since."""
    return set(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else set()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
