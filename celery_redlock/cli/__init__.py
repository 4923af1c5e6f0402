"""
The command `celery-redlock`, which is also `celery redlock`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

import click

from celery_redlock.cli.commands import MISUSED, redlock

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        return redlock.main(arguments, prog_name="celery-redlock", standalone_mode=False) or 0
    except click.ClickException as exc:
        exc.show()
        return MISUSED
    except click.Abort:
        click.echo("celery-redlock: interrupted", err=True)
        return 128 + signal.SIGINT
