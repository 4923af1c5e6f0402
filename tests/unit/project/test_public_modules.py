"""Modules list their names where the reference has them, or where they gather those of others."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import celery_redlock

PACKAGE = Path(celery_redlock.__file__).parent
REFERENCE = (Path(__file__).resolve().parents[3] / "docs/reference/api.md").read_text()
LISTING = [
    path.relative_to(PACKAGE.parent)
    for path in sorted(PACKAGE.rglob("*.py"))
    if "__all__" in path.read_text()
]


def gathers(path: Path) -> bool:
    """Return whether a package has names of its modules."""
    body = ast.parse((PACKAGE.parent / path).read_text()).body
    return path.name == "__init__.py" and any(isinstance(one, ast.ImportFrom) for one in body)


@pytest.mark.parametrize("path", LISTING, ids=str)
def test_only_public_modules_list_their_names(path: Path) -> None:
    module = ".".join(path.with_suffix("").parts)
    # The reference has these as names of the package, and as fixtures.
    public = f"# `{module.partition('.')[2]}." in REFERENCE or path.name in (
        "errors.py",
        "signals.py",
        "plugin.py",
    )
    assert public or gathers(path)
