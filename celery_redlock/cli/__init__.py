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
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        return int(arguments.run(arguments))
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

    def print_help(_: argparse.Namespace) -> int:
        parser.print_help()
        return _MISUSED

    parser.set_defaults(run=print_help)
    commands = parser.add_subparsers(metavar="COMMAND")
    init = commands.add_parser(
        "init",
        help="let brand-new lock nodes vote at once",
        description=(
            "A node without a record of its own may have crashed and lost its locks, so it does "
            "not vote until the longest possible lease has expired. This command makes brand-new "
            "nodes vote at once, provided that there are several, all of them answer, and none has "
            "a record. A set that has lost the data of all its nodes looks brand-new as well: do "
            "not run the command then."
        ),
        epilog="Exit status: 0 if every node votes now, 1 if one does not, 2 for a wrong command.",
    )
    which = init.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--nodes",
        nargs="+",
        metavar="URL",
        help="the whole set, as in redlock_nodes, with spaces or commas: redis://, rediss:// or "
        "unix:// URLs",
    )
    which.add_argument(
        "-A", "--app", metavar="APP", help="the app with these nodes, as `celery -A` takes it"
    )
    init.add_argument(
        "--force",
        action="store_true",
        help="let every node vote that answers, whatever its record; only while no lock is held "
        "anywhere",
    )
    init.set_defaults(run=_run_init)
    beat = commands.add_parser(
        "beat",
        help="show which beat leads a schedule, and the last run of each entry",
        description=(
            "The schedule of an app whose beats run RedlockScheduler, as the lock nodes have it: "
            "the beat that leads, and the last tick of each entry."
        ),
        epilog="Exit status: 0 if a beat leads, 1 if none does or too few lock nodes answer, 2 for "
        "a wrong command or setting.",
    )
    beat.add_argument(
        "-A", "--app", required=True, metavar="APP", help="the app, as `celery -A` takes it"
    )
    beat.add_argument("--json", action="store_true", help="print one JSON object")
    beat.set_defaults(run=_run_beat)
    return parser


def _run_init(arguments: argparse.Namespace) -> int:
    if arguments.app is None:
        return init_nodes(",".join(arguments.nodes), force=arguments.force)
    from celery_redlock.cli.apps import load_app
    from celery_redlock.tasks.config.settings import read_settings

    return init_nodes(read_settings(load_app(arguments.app)).nodes, force=arguments.force)


def _run_beat(arguments: argparse.Namespace) -> int:
    # Importing Celery takes a second, which `init --nodes` and `--help` do not need.
    from celery_redlock.cli.beat import beat

    return beat(arguments.app, as_json=arguments.json)
