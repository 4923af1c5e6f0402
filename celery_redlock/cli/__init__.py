"""
The command `celery-redlock`.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from celery_redlock import __version__
from celery_redlock.cli.init_nodes import init_nodes
from celery_redlock.errors import ConfigurationError, RedlockError

__all__ = ["main"]

_FAILED = 1
_MISUSED = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.command == "init":
            return init_nodes(arguments.nodes, force=arguments.force)
        # Celery takes a second to import, which `init` and `--help` do not need.
        if arguments.command == "beat":
            from celery_redlock.cli.beat import beat

            return beat(arguments.app, as_json=arguments.json)
        from celery_redlock.demo import run_demo

        return run_demo(locked=not arguments.no_lock, plain=arguments.plain)
    except ConfigurationError as exc:
        print(f"celery-redlock: {exc}", file=sys.stderr)
        return _MISUSED
    except RedlockError as exc:
        print(f"celery-redlock: {exc}", file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:
        print("celery-redlock: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="celery-redlock", description="Locks for Celery tasks on independent Redis nodes."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    init_parser = commands.add_parser(
        "init",
        help="let brand-new lock nodes vote at once",
        description=(
            "A node without a record of its own may have crashed and lost its locks, so it sits "
            "out one longest lease before it votes. This tells nodes that are brand-new that they "
            "need not: if there are several, all of them answer, and none has a record. A set that "
            "has lost everything on all of its nodes looks new, so do not run this then."
        ),
        epilog="Exit status: 0 if every node votes now, 1 if one does not, 2 for a wrong command.",
    )
    init_parser.add_argument(
        "--nodes",
        required=True,
        metavar="URL[,URL...]",
        help="the whole set, as in redlock_nodes: redis://, rediss:// or unix:// URLs",
    )
    init_parser.add_argument(
        "--force",
        action="store_true",
        help="arm every node that answers, whatever its record says; only while no lock is held "
        "anywhere",
    )
    beat_parser = commands.add_parser(
        "beat",
        help="see which beat leads a schedule, and how far its entries have come",
        description=(
            "What the lock nodes know about the schedule of an app whose beats run "
            "RedlockScheduler: the beat that leads, and each entry's last tick."
        ),
        epilog="Exit status: 0 if a beat leads, 1 if none does or too few lock nodes answer, 2 for "
        "a wrong command or setting.",
    )
    beat_parser.add_argument(
        "-A", "--app", required=True, metavar="APP", help="the app, as `celery -A` takes it"
    )
    beat_parser.add_argument("--json", action="store_true", help="print one JSON object")
    demo_parser = commands.add_parser(
        "demo",
        help="see a worker keep its locks while nodes and processes fail",
        description=(
            "60 tasks change 6 shared files while lock nodes fail, a worker process is killed and "
            "another one is frozen. Servers and worker are started for it and end with it."
        ),
        epilog="Exit status: 0 if everything was as it should be, 1 if not, 2 for a wrong command.",
    )
    demo_parser.add_argument(
        "--no-lock",
        action="store_true",
        help="the same without the lock: updates are lost (exit status 0 only if they were)",
    )
    demo_parser.add_argument(
        "--plain", action="store_true", help="print lines instead of the live view"
    )
    return parser
