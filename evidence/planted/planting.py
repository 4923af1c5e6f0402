"""
A copy of the package with one fault in it, and what the copy does in a process of its own.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from evidence.planted.killing import run
from evidence.planted.places import Edit, StaleEditError, place_of, text_at
from evidence.planted.sources import Package

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "celery_redlock"

#: A killer that has not spoken by then is hung, which is no kill.
TIMEOUT = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """
    A planted fault.

    Attributes:
        name: short and unique.
        edits: what is changed.
        killer: what must see the fault: a module of the evidence with its arguments, or `pytest`
            with the name of a test.
    """

    name: str
    edits: tuple[Edit, ...]
    killer: tuple[str, ...]


@cache
def shipped() -> Package:
    """Return the package without a fault."""
    return Package.at(ROOT / PACKAGE)


def faulty_files(fault: Fault, package: Package) -> dict[str, str]:
    """
    Return the files that the fault changes, with their new text.

    Raises:
        StaleEditError: the package has changed where the fault would be.
    """
    places = [(place_of(edit, package), edit) for edit in fault.edits]
    texts: dict[str, str] = {}
    # From the end of each file on, so that the places before stay where they are.
    for place, edit in sorted(places, key=lambda found: -found[0].start):
        path = place.region.path
        text = texts.get(path, place.region.source)
        texts[path] = text[: place.start] + text_at(place, edit) + text[place.end :]
    return texts


def command_of(fault: Fault) -> list[str]:
    """
    Return the words after `python -m` that run a fault's killer.

    Raises:
        StaleEditError: there is no such test, or several of that name.
    """
    module, *words = fault.killer
    if module != "pytest":
        return [module, *words]
    file, _, test = words[0].rpartition("::")
    paths = [path for path in _tests().get(test, ()) if path.endswith(file)]
    if len(paths) != 1:
        near = paths or get_close_matches(test, _tests(), n=1)
        told = "several files have it" if paths else "no test is called so; the nearest is"
        raise StaleEditError(f"the killer {words[0]}: {told} {', '.join(near)}")
    return ["pytest", "-q", "-x", "-p", "no:cacheprovider", f"{paths[0]}::{test}"]


@cache
def _tests() -> Mapping[str, list[str]]:
    """Return the files of each test."""
    found = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for test in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE):
            found[test].append(str(path.relative_to(ROOT)))
    return found


@contextmanager
def planted(fault: Fault) -> Iterator[Path]:
    """Give a directory with the package, the fault in it, and the tests and evidence from here."""
    with tempfile.TemporaryDirectory(prefix="planted-") as made:
        home = Path(made)
        # What is compiled already stays so, except the files that change.
        shutil.copytree(ROOT / PACKAGE, home / PACKAGE)
        for beside in ("tests", "evidence"):
            (home / beside).symlink_to(ROOT / beside, target_is_directory=True)
        for path, text in faulty_files(fault, shipped()).items():
            (home / PACKAGE / path).write_text(text)
        yield home


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """
    What became of a fault.

    Attributes:
        end: killed, survived or broken (its killer failed otherwise than by seeing it).
        said: what the killer printed.
    """

    name: str
    end: str
    seconds: float
    said: str


def try_to_kill(fault: Fault) -> Ending:
    """Run a fault's killer against it."""
    begun = time.perf_counter()
    try:
        command = command_of(fault)
        with planted(fault) as home:
            end, said = _run(command, home)
    except StaleEditError as exc:
        end, said = "broken", str(exc)
    return Ending(name=fault.name, end=end, seconds=time.perf_counter() - begun, said=said)


def _run(command: list[str], home: Path) -> tuple[str, str]:
    status, said = run(command, home, TIMEOUT)
    if status is None:
        return "broken", f"no end after {TIMEOUT:.0f} s"
    if status == 0:
        return "survived", said
    seen = any(line.startswith(("VIOLATION", "FAILED")) for line in said.splitlines())
    # A fault that uses a name which is another one by now is no fault that anybody could make.
    is_sane = status == 1 and "NameError: " not in said
    return ("killed" if seen and is_sane else "broken"), said
