"""
Explore the line: `python -m evidence.waiting [--limit STATES] [NAME ...]`.

Without names: every setting, then each rule taken back, which has to be seen, then livelocks.
"""

from __future__ import annotations

import argparse
import gc
import sys

from evidence.models.explorer import Outcome, explore
from evidence.waiting.line import Line, LineSetting
from evidence.waiting.livelock import Livelock, livelock
from evidence.waiting.settings import LIVELOCKS, RULES, SETTINGS
from evidence.waiting.starving import starved


def _examine(setting: LineSetting, limit: int, *, tells: bool) -> Outcome:
    outcome = explore(Line(setting), setting.name, limit)
    how_far = "all" if outcome.exhausted else "the nearest"
    found = outcome.violation or "holds"
    print(
        f"{outcome.name:44} {how_far:>11} {outcome.states:>9,} states, {outcome.seconds:6.1f} s: "
        f"{found}",
        flush=True,
    )
    for number, step in enumerate(outcome.trace if tells else (), 1):
        print(f"  {number:2}. {step}")
    return outcome


def _tell(found: Livelock) -> None:
    how_far = "all" if found.is_whole else "the nearest"
    print(
        f"{found.name:44} {how_far:>11} {found.states:>9,} states: {found.cycles} cycles of "
        f"attempts, {found.closed} of them closed",
        flush=True,
    )
    for step in found.cycle:
        print(f"      {step}")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m evidence.waiting", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*SETTINGS, []], help="settings")
    parser.add_argument("--limit", type=int, default=100_000, help="states of each")
    given = parser.parse_args(arguments)
    gc.disable()
    failed = False
    for name in given.names or SETTINGS:
        failed |= bool(_examine(SETTINGS[name], given.limit, tells=True).violation)
    if given.names:
        return int(failed)
    for rule, names in RULES.items():
        broken = [
            _examine(SETTINGS[name].without(rule), given.limit, tells=False) for name in names
        ]
        if not any(outcome.violation for outcome in broken):
            print(f"SHORTFALL: nothing sees that a rule is taken back: {rule}")
            failed = True
    for setting in LIVELOCKS:
        _tell(livelock(setting, given.limit))
    for fair in (True, False):
        is_starved = starved(1000, fair=fair)
        print(f"one that needs two keys, {'fair' if fair else 'unfair'}: starves: {is_starved}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
