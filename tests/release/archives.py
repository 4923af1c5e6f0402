"""What is in the wheel and in the source archive."""

from __future__ import annotations

import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

__all__ = ["tracked", "wrong_in_source_archive", "wrong_in_wheel"]

PACKAGE = "celery_redlock"
#: A link of Markdown that a package index cannot follow.
RELATIVE = re.compile(r"\]\((?!https?:)[^)]*\)")


def tracked(top: Path) -> set[str]:
    """Return the files that belong to the project: those that Git knows."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=top, check=True, capture_output=True, text=True
    ).stdout
    return {name for name in listed.split("\0") if name and (top / name).is_file()}


def wrong_in_wheel(wheel: Path, top: Path) -> list[str]:
    """Return how the wheel differs from the package: every file of it, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        described = "".join(
            archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")
        )
    metadata = {name for name in names if ".dist-info/" in name}
    package = {name for name in tracked(top) if name.startswith(f"{PACKAGE}/")}
    problems = _difference("the wheel", names - metadata, package)
    problems += [
        f"the description has a link that leads nowhere on a package index: {link}"
        for link in RELATIVE.findall(described)
    ]
    wanted = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "LICENSE"}
    problems += [
        f"the wheel has no {name}"
        for name in sorted(wanted - {Path(name).name for name in metadata})
    ]
    problems += [
        f"the wheel has no file {name}"
        for name in (
            f"{PACKAGE}/py.typed",
            f"{PACKAGE}/protocol/lua/acquire.lua",
            f"{PACKAGE}/web/page.html",
        )
        if name not in names
    ]
    return problems


def wrong_in_source_archive(archive_path: Path, top: Path) -> list[str]:
    """Return how the source archive differs from what Git knows: complete, and nothing else."""
    with tarfile.open(archive_path) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    return _difference("the source archive", names - {"PKG-INFO"}, tracked(top))


def _difference(where: str, found: set[str], wanted: set[str]) -> list[str]:
    return [f"{where} lacks {name}" for name in sorted(wanted - found)] + [
        f"{where} has {name}, which Git does not know" for name in sorted(found - wanted)
    ]
