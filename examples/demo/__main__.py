"""
Five lock nodes, a worker, and a minute of faults: `python -m examples.demo`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from examples.demo.runs import Check, judge
from examples.demo.story import ACCOUNTS, TOTAL, Demo, Event, View
from examples.stage import Stage


class TextView:
    """Prints each event when it happens."""

    def show(self, event: Event) -> None:
        """Print an event."""
        print(f"{event.at:6.1f} s  {event.kind:<7} {event.text}", flush=True)

    def refresh(self, demo: Demo) -> None:
        """Print nothing: only events are printed."""


def main() -> int:
    """Play the demo, and return its exit status: 0 if it has shown what it is there to show."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description=f"{TOTAL} tasks change {len(ACCOUNTS)} files while nodes and processes fail.",
    )
    parser.add_argument("--no-lock", action="store_true", help="without the lock: updates are lost")
    parser.add_argument("--plain", action="store_true", help="print lines, also on a terminal")
    parser.add_argument("--record", metavar="FILE", help="write a moving picture: an SVG file")
    arguments = parser.parse_args()
    # The demo breaks its nodes, so it starts its own, whatever the shell names for other work.
    for name in [name for name in os.environ if name.startswith(("CELERY_", "REDLOCK_"))]:
        del os.environ[name]
    if arguments.no_lock:
        os.environ["DEMO_NO_LOCK"] = "1"
    with Stage() as stage:
        os.environ["DEMO_DIRECTORY"] = str(stage.directory)
        worker = stage.start_worker("examples.demo.tasks", processes=len(ACCOUNTS))
        assert stage.nodes is not None
        recording = None
        if arguments.record:
            from examples.demo.recording import Recording

            recording = Recording()
        with recording or choose_view(plain=arguments.plain) as view:
            demo = Demo(nodes=stage.nodes, worker=worker, view=view, locked=not arguments.no_lock)
            demo.play()
        good, text = conclude(demo)
        print(f"\n{text}", flush=True)
        if recording:
            recording.write(arguments.record, text)
        return 0 if good else 1


def choose_view(*, plain: bool) -> AbstractContextManager[View]:
    """Return the live view where the terminal can show it."""
    dumb = os.environ.get("TERM", "dumb") in ("dumb", "unknown")
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    if plain or dumb or not utf8 or not sys.stdout.isatty():
        return nullcontext(TextView())
    try:
        from examples.demo.live_view import LiveView
    except ImportError:  # `rich` is not installed
        return nullcontext(TextView())
    return LiveView()


def conclude(demo: Demo) -> tuple[bool, str]:
    """Return whether the demo has shown what it is there to show, and a table of it."""
    balances = demo.balances
    checks = judge(demo.runs, demo.payments, balances)
    lost = TOTAL - sum(balances.values())
    if demo.locked:
        good = all(check.holds for check in checks)
        conclusion = (
            f"All {TOTAL} updates are there, whatever failed." if good else "NOT as expected."
        )
    else:
        good = lost > 0
        conclusion = f"Without the lock {lost} of {TOTAL} updates are lost."
    return good, f"{table(checks)}\n\n{conclusion}"


def table(checks: Sequence[Check]) -> str:
    """Return what was expected and what was found."""
    width = max(len(check.subject) for check in checks)
    lines = [f"{'':<{width}}  {'expected':<12}found"]
    for check in checks:
        mark = "ok" if check.holds else "NOT SO"
        lines.append(f"{check.subject:<{width}}  {check.expected!s:<12}{check.found!s:<12}{mark}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
