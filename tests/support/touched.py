"""
What `make quick` runs: `python -m tests.support.touched [REF]` prints its paths.

With a reference, only the tests of what has changed since. `tests/unit` has the folders of the
package, so a file leads to the folder of its tests. A file that all tests stand on leads to all.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, UNIT = Path("celery_redlock"), Path("tests/unit")

#: The rules, explored by every combination of their facts, and the check that no fault is stale.
TABLES, PLANTED = "tests/evidence/models/test_tables.py", "tests/evidence/planted"

#: All that `make quick` runs.
ALL = (str(UNIT), TABLES, PLANTED)

#: What is read where a file begins with it, beside the folder that mirrors it.
ALSO = {
    "celery_redlock": (PLANTED,),
    "celery_redlock/tasks/rules": (TABLES,),
    "evidence/models": (TABLES,),
    "evidence/planted": (PLANTED,),
    "tests/evidence/models": (TABLES,),
    "tests/evidence/planted": (PLANTED,),
    "pyproject.toml": ALL,
    "tests/conftest.py": ALL,
    "tests/support": ALL,
}


def changed_since(reference: str) -> list[Path]:
    """Return files that differ from where this branch left a reference, and new ones."""
    base = _git("merge-base", reference, "HEAD")[0]
    differing = _git("diff", "--name-only", base)
    new = _git("ls-files", "--others", "--exclude-standard")
    return [Path(name) for name in (*differing, *new)]


def touched(changed: Iterable[Path], root: Path = ROOT) -> list[str]:
    """Return the tests of what has changed, each folder or file once."""
    found: dict[str, None] = {}
    for path in changed:
        for beginning, tests in ALSO.items():
            if path.is_relative_to(beginning):
                found |= dict.fromkeys(tests)
        if (mirrored := _mirrored(path, root)) is not None:
            found[str(mirrored)] = None
    return [one for one in found if not any(str(above) in found for above in Path(one).parents)]


def _mirrored(path: Path, root: Path) -> Path | None:
    if path.is_relative_to(UNIT):
        is_test = path.name.startswith("test_") and (root / path).exists()
        return path if is_test else _existing(path.parent, root)
    if not path.is_relative_to(PACKAGE):
        return None
    parts = [part.lstrip("_") for part in path.relative_to(PACKAGE).with_suffix("").parts]
    if len(parts) == 1:  # a module of the package itself has a file of tests, or all of them
        own = UNIT / f"test_{parts[0]}.py"
        return own if (root / own).exists() else UNIT
    return _existing(UNIT.joinpath(*parts), root)


def _existing(folder: Path, root: Path) -> Path:
    """Return a folder, or the nearest above it that there is."""
    while not (root / folder).is_dir():
        folder = folder.parent
    return folder


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"git {' '.join(arguments)} failed: SINCE has to name a commit")
    return done.stdout.splitlines()


def main() -> None:
    """Print the paths, or a message where nothing is to be run."""
    references = sys.argv[1:]
    tests = touched(changed_since(references[0])) if references else ALL
    if not tests:
        print(f"`make quick` tests nothing that has changed since {references[0]}", file=sys.stderr)
    print("\n".join(tests))


if __name__ == "__main__":
    main()
