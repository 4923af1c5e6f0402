"""Lines of the package are seen wherever an application shows any, and with no logging set up."""

from __future__ import annotations

import ast
from pathlib import Path

import celery_redlock

PACKAGE = Path(celery_redlock.__file__).parent
CELERYS = {"celery.utils.log", "kombu.log"}
#: A module without any of these imports none of them.
PACKAGES = ("celery.utils", "kombu")


def imported(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def test_no_module_takes_a_logger_of_celery_which_is_silent_in_a_publisher() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(package in (source := path.read_text()) for package in PACKAGES)
        and imported(ast.parse(source)) & CELERYS
    }
    assert found == set()
