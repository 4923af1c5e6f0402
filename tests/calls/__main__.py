"""
Calls of unique tasks with real workers, under load: `python -m tests.calls [SCENE ...]`.

Exit status 1 if a promise did not hold for a single call.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys

from tests.calls.stage import ROOT, Setup, servers

NAMES = ("pairs", "replaced", "after the result", "after the end", "revoked")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.calls", description=__doc__)
    parser.add_argument("scenes", nargs="*", default=NAMES, help=", ".join(NAMES))
    parser.add_argument("--count", type=int, default=20, help="calls of each kind")
    parser.add_argument("--processes", type=int, nargs="*", default=[4])
    parser.add_argument("--prefetch", type=int, nargs="*", default=[4])
    parser.add_argument("--acks", nargs="*", choices=["early", "late"], default=["early"])
    parser.add_argument("--broker", nargs="*", choices=["redis", "rabbitmq"], default=["redis"])
    given = parser.parse_args()
    failed = False
    settings = itertools.product(given.broker, given.processes, given.prefetch, given.acks)
    for broker, processes, prefetch, acks in settings:
        setup = Setup(broker=broker, processes=processes, prefetch=prefetch, late=acks == "late")
        print(f"== {setup}", flush=True)
        with servers(setup) as environment:
            for scene in given.scenes:
                failed |= not _play(scene, given.count, environment)
    return int(failed)


def _play(scene: str, count: int, environment: dict[str, str]) -> bool:
    # A process of its own, because its app is that of these servers.
    command = [sys.executable, "-m", "tests.calls.play", scene, str(count)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    print(done.stdout, end="", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
