"""The examples as their pages tell a user to run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import TIMEOUT

__all__ = [
    "EXAMPLES",
    "EXAMPLE_TIMEOUT",
    "NAMES",
    "ROOT",
    "Example",
    "marked",
    "processes_of",
    "started",
]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

#: In the order of the table that lists them.
NAMES = re.findall(r"^\| \[(\w+)\]\(\1/README\.md\)", (EXAMPLES / "README.md").read_text(), re.M)

#: Examples that need more than wheels.
SYSTEM = {"other_language"}

# What a developer's shell may have set for other work.
FOREIGN = ("CELERY_", "REDLOCK_", "DJANGO_")

#: Far above an example's own patience, of which each wait has one.
EXAMPLE_TIMEOUT = 14 * TIMEOUT


def marked(names: list[str]) -> list[Any]:
    """Return names as parameters of a test; those that need more than wheels are marked."""
    return [
        pytest.param(name, marks=pytest.mark.system) if name in SYSTEM else name for name in names
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """
    What an example's page says.

    Attributes:
        extras: the extras of this package that have to be installed.
        packages: what else has to be.
        command: what runs it, from the top of a checkout.
    """

    extras: frozenset[str]
    packages: tuple[str, ...]
    command: tuple[str, ...]

    @classmethod
    def of(cls, name: str) -> Example:
        """Read an example's page."""
        block = re.search(
            r'^```console\n\$ pip install -e "\.\[(?P<extras>[\w,]+)\]"(?P<packages>.*)\n'
            r"\$ python (?P<command>.+)\n```$",
            (EXAMPLES / name / "README.md").read_text(),
            re.M,
        )
        assert block is not None, f"the page of {name} has no block with an install and a command"
        return cls(
            extras=frozenset(block["extras"].split(",")),
            packages=tuple(block["packages"].split()),
            command=tuple(block["command"].split()),
        )


def started(
    example: Example,
    temporary: Path,
    top: Path = ROOT,
    *,
    options: tuple[str, ...] = (),
    **environment: str,
) -> subprocess.Popen[str]:
    """Start an example in the checkout at `top`; it keeps its files in `temporary`."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return subprocess.Popen(
        [sys.executable, *example.command, *options],
        cwd=top,
        env={**own, "TMPDIR": str(temporary), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def processes_of(temporary: Path) -> list[str]:
    """Return the command lines of the processes that keep their files in a directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            command = (process / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue  # gone meanwhile
        if f"TMPDIR={temporary}".encode() in environment and state != "Z":
            found.append(command)
    return found
