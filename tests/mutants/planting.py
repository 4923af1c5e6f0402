"""
A copy of the package with one fault in it, and what the copy does in a process of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "celery_redlock"

#: A killer that has not spoken by then is hung, which is no kill.
TIMEOUT = 240.0


@dataclass(frozen=True, slots=True)
class Edit:
    """A piece of a file of the package, and what it becomes."""

    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """
    A planted fault.

    Attributes:
        name: short and unique.
        edits: what is changed; each old text occurs exactly once in its file.
        killer: module and arguments of what must see the fault.
    """

    name: str
    edits: tuple[Edit, ...]
    killer: tuple[str, ...]


class StaleEditError(Exception):
    """The shipped code no longer reads as an edit expects."""


def edited(edit: Edit, source: str) -> str:
    """Return a file's text with the fault in it."""
    count = source.count(edit.old)
    if count != 1:
        raise StaleEditError(
            f"{edit.path} has this {count} times, not once; write the mutant anew:\n{edit.old}"
        )
    return source.replace(edit.old, edit.new)


@contextmanager
def planted(mutant: Mutant) -> Iterator[Path]:
    """Give a directory from which Python imports the package with the fault, and these tests."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as made:
        home = Path(made)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / PACKAGE, home / PACKAGE, ignore=ignored)
        (home / "tests").symlink_to(ROOT / "tests", target_is_directory=True)
        for edit in mutant.edits:
            path = home / PACKAGE / edit.path
            path.write_text(edited(edit, path.read_text()))
        yield home


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """
    What became of a mutant.

    Attributes:
        end: killed, survived or broken (it failed otherwise than by a violation).
        said: what the killer printed.
    """

    name: str
    end: str
    seconds: float
    said: str


def try_to_kill(mutant: Mutant) -> Ending:
    """Run a mutant's killer against it."""
    begun = time.perf_counter()
    try:
        with planted(mutant) as home:
            end, said = _run(mutant, home)
    except StaleEditError as exc:
        end, said = "broken", str(exc)
    return Ending(name=mutant.name, end=end, seconds=time.perf_counter() - begun, said=said)


def _run(mutant: Mutant, home: Path) -> tuple[str, str]:
    environment = {**os.environ, "PYTHONPATH": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", *mutant.killer],
            cwd=home,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        return "broken", f"no end after {exc.timeout:.0f} s"
    said = done.stdout + done.stderr
    if done.returncode == 0:
        return "survived", said
    seen = any(line.startswith(("VIOLATION", "FAILED")) for line in said.splitlines())
    return ("killed" if done.returncode == 1 and seen else "broken"), said
