"""
Calls of unique tasks with real workers: `python -m evidence.calls [SCENE ...]`.

Plays each scene with each combination of broker, processes, prefetch and acks, and prints a table:
how many bodies ran for how many calls. Exit status 1 if a promise did not hold for a single call.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from evidence.calls.stage import ACKS, BROKERS, ROOT, Figures, Setup, servers

NAMES = (
    *("pairs", "replaced", "after the result", "after the end", "revoked", "redelivered"),
    *("newest", "newest killed", "newest minority"),
    "debounced",
)

_COLUMNS = ("broker", "processes", "prefetch", "acks")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m evidence.calls", description=__doc__)
    parser.add_argument("scenes", nargs="*", default=NAMES, help=", ".join(NAMES))
    parser.add_argument("--count", type=int, default=4, help="calls of each kind")
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 4, 8])
    parser.add_argument("--prefetch", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--acks", nargs="*", choices=ACKS, default=ACKS)
    parser.add_argument("--broker", nargs="*", choices=BROKERS, default=BROKERS)
    parser.add_argument("--at-once", type=int, default=2, help="combinations played at a time")
    given = parser.parse_args()
    setups = [
        Setup(broker=broker, processes=processes, prefetch=prefetch, late=acks == "late")
        for broker, processes, prefetch, acks in itertools.product(
            given.broker, given.processes, given.prefetch, given.acks
        )
    ]
    _print_row((*_COLUMNS, *given.scenes))
    kept = True
    with ThreadPoolExecutor(given.at_once) as pool:
        play = partial(_play_all, given.scenes, given.count)
        for setup, row in zip(setups, pool.map(play, setups), strict=True):
            _print_row((*setup.columns, *map(_cell, row)))
            kept = kept and all(figures is not None and not figures.broken for figures in row)
    return int(not kept)


def _print_row(cells: Sequence[str]) -> None:
    print("  ".join(f"{cell:<{10 if at < len(_COLUMNS) else 17}}" for at, cell in enumerate(cells)))
    sys.stdout.flush()


def _cell(figures: Figures | None) -> str:
    if figures is None:
        return "NO END"
    text = f"{figures.bodies}/{figures.calls}"
    if figures.slowest:
        text = f"{text} in {figures.slowest:.2f} s"
    late = f", {figures.late:.2f} s late" if figures.late else ""
    return f"{text} BROKEN {sum(figures.broken.values())}" if figures.broken else f"{text} ok{late}"


def _play_all(scenes: Sequence[str], count: int, setup: Setup) -> list[Figures | None]:
    with servers(setup) as environment:
        return [_play(scene, count, setup, environment) for scene in scenes]


def _play(scene: str, count: int, setup: Setup, environment: dict[str, str]) -> Figures | None:
    """Return a scene's figures; None if it did not end, which is shown with all output."""
    # A process of its own, because its app is that of these servers.
    command = [sys.executable, "-m", "evidence.calls.play", scene, str(count)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode == 0 or done.stdout:
        figures = Figures(**json.loads(done.stdout))
        if figures.broken:
            print(f"{setup}: {scene}: {figures.broken}", file=sys.stderr)
        return figures
    print(f"{setup}: {scene} did not end: {done.stderr}", file=sys.stderr)
    return None


if __name__ == "__main__":
    sys.exit(main())
