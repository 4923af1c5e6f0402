"""Run every example, one after the other: `python -m tests.examples`."""

from __future__ import annotations

import subprocess
import sys

from tests.examples.running import NAMES, ROOT, Example


def main() -> None:
    """Run them in the order in which they are listed; stop at one that fails."""
    for name in NAMES:
        command = Example.of(name).command
        print(f"\n== {name}: python {' '.join(command)}", flush=True)
        subprocess.run([sys.executable, *command], cwd=ROOT, check=True)
    print(f"\n{len(NAMES)} examples have shown what they claim.")


if __name__ == "__main__":
    main()
