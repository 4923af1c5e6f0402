"""
Times on the command line.
"""

from __future__ import annotations

import re

import click

from celery_redlock.protocol.timing import UNITS


def duration(value: str) -> float:
    """Return the seconds of a time as people write it: 90, 90s, 30m, 2h or 1d."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", value, re.ASCII)
    if found is None or not float(found[1]):
        raise click.BadParameter(f"{value!r} is not a time; write 90, 90s, 30m, 2h or 1d.")
    return float(found[1]) * UNITS[found[2] or "s"]
